/* Slots for regions that are open, and which region is around which. */
#include "events/events.h"

/* A slot is reused at once, except one whose region may still be taken for the innermost one
 * somewhere (it ended out of order, or in another thread): that slot waits until this many others
 * were given back, and names its parent until then. */
enum { LATE = 1024 };
static uint16_t free_slots[SONDE_TOTALS_OPEN];
static uint32_t free_n;
static uint16_t late_slots[LATE];
static uint32_t late_n, late_at;
static const void *begun_in[SONDE_TOTALS_OPEN]; /* the context of the region in each slot */
static int64_t serials_before;                /* numbers up to this belong to another recording */

void sonde_slots_reset(void)
{
    serials_before = sonde_events.last_serial;
    free_n = late_n = late_at = 0;
    for (uint32_t slot = SONDE_TOTALS_OPEN - 1; slot > 0; slot--)
        free_slots[free_n++] = (uint16_t)slot;
}

uint32_t sonde_slot_take(void)
{
    if (free_n > 0)
        return free_slots[--free_n];
    if (late_n > 0) {
        uint32_t slot = late_slots[(late_at + LATE - late_n) % LATE];
        late_n--;
        return slot;
    }
    sonde_events.totals->open_lost++;
    return 0;
}

void sonde_slot_give(uint32_t slot, int late)
{
    if (slot == 0)
        return;
    if (!late) {
        free_slots[free_n++] = (uint16_t)slot;
        return;
    }
    if (late_n == LATE)
        free_slots[free_n++] = late_slots[late_at];
    else
        late_n++;
    late_slots[late_at] = (uint16_t)slot;
    late_at = (late_at + 1) % LATE;
}

void sonde_slot_begin(uint32_t slot, const void *context) { begun_in[slot] = context; }

int64_t sonde_region_resolve(int64_t id)
{
    for (int i = 0; i < 64 && id > 0; i++) {
        uint32_t slot = (uint32_t)id & (SONDE_TOTALS_OPEN - 1);
        if (slot == 0)
            return id; /* it found no slot, so nothing more is known */
        const sonde_open *open = sonde_totals_open(sonde_events.totals, slot);
        if (open->id != id)
            return 0; /* it ended long ago, or belongs to another recording */
        if (open->is_open)
            return id;
        id = open->parent;
    }
    return 0;
}

static __thread int64_t innermost;

static PyObject *find_variable(const sonde_sub *sub) { return sub == NULL ? sonde_events.current : sub->current; }

int64_t sonde_region_current(const sonde_sub *sub, const sonde_event_place *here)
{
    if (!here->in_context)
        return innermost;
    PyObject *number = NULL;
    int64_t id = -1;
    if (PyContextVar_Get(find_variable(sub), NULL, &number) == 0 && number != NULL)
        id = PyLong_AsLongLong(number);
    Py_XDECREF(number);
    if (PyErr_Occurred())
        PyErr_Clear();
    /* Not set: the context was made where the thread's own value counts, as asyncio.run() does. */
    return id < 0 ? innermost : id;
}

void sonde_region_set_current(const sonde_sub *sub, const sonde_event_place *here, int64_t id)
{
    if (!here->in_context) {
        innermost = id;
        return;
    }
#if PY_VERSION_HEX < 0x030C0000
    /* Up to 3.11, making an object may run a garbage collection, which may run code of the
     * program; if that code sets a context variable, too, CPython crashes. */
    int collects = PyGC_Disable();
#endif
    PyObject *number = PyLong_FromLongLong(id);
    PyObject *token = number == NULL ? NULL : PyContextVar_Set(find_variable(sub), number);
#if PY_VERSION_HEX < 0x030C0000
    if (collects)
        PyGC_Enable();
#endif
    Py_XDECREF(number);
    Py_XDECREF(token);
    if (token == NULL)
        PyErr_Clear();
}

int64_t sonde_region_around(const sonde_event_place *here, int64_t outer)
{
    if (!here->in_context)
        return sonde_region_resolve(outer);
    for (int i = 0; i < 64 && outer >> SONDE_SLOT_BITS > serials_before; i++) {
        uint32_t slot = (uint32_t)outer & (SONDE_TOTALS_OPEN - 1);
        const sonde_open *open = sonde_totals_open(sonde_events.totals, slot);
        /* A region that began in this very task and ended in another: nothing lies inside it any
         * more. */
        int is_over = slot != 0 && open->id == outer && !open->is_open && begun_in[slot] == here->context;
        if (!is_over)
            return outer;
        outer = open->parent;
    }
    return 0;
}

int64_t sonde_region_here(const sonde_sub *sub)
{
    sonde_event_place here = sonde_here();
    return sonde_region_around(&here, sonde_region_current(sub, &here));
}
