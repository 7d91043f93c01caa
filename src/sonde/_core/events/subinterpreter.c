/* What lies between a subinterpreter and the rings of the process. See subinterpreter.h. */
#include "events/events.h"
#include "kernel/fork.h"

/* The recording in which there was no room for this ring: it is not asked for again and again. */
static uint32_t refused[EVENT_TABLES];

sonde_sub *sonde_sub_of(PyTypeObject *type)
{
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) || PyInterpreterState_Get() == PyInterpreterState_Main())
        return NULL;
    /* A class of the program belongs to no module in C; one of ours is among its bases. */
    while (type->tp_base != NULL && ((PyHeapTypeObject *)type)->ht_module == NULL)
        type = type->tp_base;
    return PyType_GetModuleState(type);
}

/* ---- a visit to the main interpreter --------------------------------------------------- */

static int is_finalizing(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

void sonde_sub_visit(void (*call)(void *argument), void *argument)
{
    if (is_finalizing())
        return;
    PyThreadState *own = PyEval_SaveThread();
    PyThreadState *guest = PyThreadState_New(PyInterpreterState_Main());
    if (guest != NULL) {
        PyEval_RestoreThread(guest);
        call(argument);
        PyThreadState_Clear(guest);
        PyThreadState_DeleteCurrent();
    }
    PyEval_RestoreThread(own);
}

static void lend(int table)
{
    PyObject *writer = Py_XNewRef(sonde_events.tables[table]);
    if (writer == NULL)
        return;
    if (sonde_writer_open(writer) < 0)
        PyErr_Clear();
    if (!sonde_writer_lend(writer, &sonde_lent[table]))
        refused[table] = sonde_events.epoch;
    Py_DECREF(writer);
}

static void lend_all(void *tables)
{
    if (sonde_events.totals == NULL && !sonde_events_wake())
        return;
    for (int table = 0; table < EVENT_TABLES; table++)
        if (*(unsigned *)tables >> table & 1)
            lend(table);
}

/* ---- with the lock ---------------------------------------------------------------------- */

/* Is there a recording that wants events, but no room yet for these? */
static int is_due(unsigned tables)
{
    if (sonde_events.epoch == 0 || !sonde_events.is_open || !sonde_load_relaxed(sonde_events.on))
        return 0;
    for (int table = 0; table < EVENT_TABLES; table++)
        if (tables >> table & 1 && sonde_lent[table].ring.shared == NULL && refused[table] != sonde_events.epoch)
            return 1;
    return tables != 0 && sonde_events.totals == NULL;
}

void sonde_sub_take(sonde_sub *sub, unsigned tables)
{
    sonde_sub_lock();
    if (is_due(tables)) {
        sonde_sub_unlock();
        sonde_sub_visit(lend_all, &tables);
        sonde_sub_lock();
    }
    /* Up to 3.11, making an object may run a garbage collection, and that may run any code. */
    sub->collects = PY_VERSION_HEX < 0x030C0000 && PyGC_Disable();
}

void sonde_sub_give(const sonde_sub *sub)
{
    if (sub->collects)
        PyGC_Enable();
    sonde_sub_unlock();
}

/* ---- the module -------------------------------------------------------------------------- */

static int fork_status;

static void announce(void *Py_UNUSED(nothing))
{
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    sonde_has_subs = 1;
    fork_status = sonde_fork_watch();
    SONDE_EXCLUDE_END
}

int sonde_sub_begin(sonde_sub *sub)
{
    sub->number = (uint32_t)PyInterpreterState_GetID(PyInterpreterState_Get());
    sub->current = PyContextVar_New("sonde_region", NULL);
    if (sub->current == NULL)
        return -1;
    sonde_sub_visit(announce, NULL);
    if (!sonde_has_subs || fork_status < 0)
        PyErr_SetString(PyExc_ImportError, "sonde._core cannot record events of this interpreter");
    return PyErr_Occurred() ? -1 : 0;
}
