/* Trigger: conditions as a Python object; see trigger.h. */
#define _GNU_SOURCE 1
#include "stacks/trigger.h"
#include "kernel/thread.h"

#include <math.h>
#include <unistd.h>

#define WAIT_US 50
#define WAITS 400

static int take_texts(sonde_Trigger *self, PyObject *text, PyObject *conditions)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(conditions); i++) {
        int64_t id = sonde_text_id(text, PyList_GET_ITEM(conditions, i));
        if (id < 0)
            return -1;
        self->texts[i] = (uint32_t)id;
    }
    self->conditions = (uint32_t)PyList_GET_SIZE(conditions);
    return 0;
}

static PyObject *trigger_start(sonde_Trigger *self, PyObject *Py_UNUSED(none))
{
    Py_INCREF(self); /* the native thread's reference; stop() gives it back */
    if (!sonde_triggers_begin(self))
        Py_DECREF(self);
    sonde_native_threads_ring();
    Py_RETURN_NONE;
}

static PyObject *trigger_stop(sonde_Trigger *self, PyObject *Py_UNUSED(none))
{
    if (sonde_triggers_end(self))
        Py_DECREF(self);
    Py_RETURN_NONE;
}

static int check(const sonde_Trigger *self, unsigned at, unsigned condition)
{
    if (at < SONDE_SLOTS && condition < self->conditions)
        return 0;
    PyErr_SetString(PyExc_IndexError, "there is no such slot or condition");
    return -1;
}

static PyObject *trigger_arm(sonde_Trigger *self, PyObject *args)
{
    unsigned at, condition, tid;
    long long since_ns, due_ns;
    if (!PyArg_ParseTuple(args, "IILLI", &at, &condition, &since_ns, &due_ns, &tid) ||
        check(self, at, condition) < 0)
        return NULL;
    sonde_trigger_slot *one = &self->slots[at];
    sonde_store_release(&one->due_ns, 0);
    one->since_ns = since_ns;
    one->condition = condition;
    one->tid = tid;
    /* Release: the fields before the time that makes them count. */
    sonde_store_release(&one->due_ns, due_ns);
    Py_RETURN_NONE;
}

static PyObject *trigger_disarm(sonde_Trigger *self, PyObject *number)
{
    unsigned long at = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred() || check(self, at < SONDE_SLOTS ? (unsigned)at : SONDE_SLOTS, 0) < 0)
        return NULL;
    sonde_store_release(&self->slots[at].due_ns, 0);
    Py_RETURN_NONE;
}

/* The native thread is asked, and waited for: at most twenty milliseconds, because the stack is to
 * be that of this moment. */
static int fire(sonde_Trigger *self, uint32_t condition, double value, int is_bare)
{
    sonde_trigger_slot *one = NULL;
    SONDE_EXCLUDE_BEGIN(self)
    for (int i = SONDE_SLOTS; i < SONDE_SLOTS + SONDE_AT_ONCE && one == NULL; i++)
        if (sonde_load_acquire(&self->slots[i].due_ns) == 0)
            one = &self->slots[i];
    if (one != NULL) {
        one->since_ns = 0;
        one->value = value;
        one->condition = condition;
        one->tid = (uint32_t)sonde_find_tid();
        one->is_bare = is_bare;
        /* Release: the fields before the time that makes them count. */
        sonde_store_release(&one->due_ns, 1);
    }
    SONDE_EXCLUDE_END
    if (one == NULL)
        return 0; /* others wait already, so all stacks are about to be recorded anyway */
    sonde_native_threads_ring();
    Py_INCREF(self);
    int left = WAITS;
    Py_BEGIN_ALLOW_THREADS
    for (; left > 0 && sonde_load_acquire(&one->due_ns) != 0; left--)
        usleep(WAIT_US);
    Py_END_ALLOW_THREADS
    Py_DECREF(self);
    return left > 0;
}

static PyObject *trigger_fire(sonde_Trigger *self, PyObject *number)
{
    unsigned long condition = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred() || check(self, 0, condition < SONDE_CONDITIONS ? (unsigned)condition : SONDE_CONDITIONS) < 0)
        return NULL;
    return PyBool_FromLong(fire(self, (uint32_t)condition, NAN, 1));
}

/* ---- counters: in C, so that no frame of ours is in the stack ------------------------------- */

static void compare(sonde_Trigger *self, sonde_trigger_counter *one, double value)
{
    int has_begun;
    SONDE_EXCLUDE_BEGIN(self)
    int is_met = one->is_below ? value < one->limit : value > one->limit;
    has_begun = is_met && !one->is_met;
    one->is_met = (uint8_t)is_met;
    SONDE_EXCLUDE_END
    if (has_begun)
        (void)fire(self, one->condition, value, 0);
}

/* Numbers of other types are left out: they could run code of the program. */
static void see_counter(sonde_Trigger *self, PyObject *name, PyObject *value)
{
    double number;
    PyObject *found = PyDict_GetItemWithError(self->counters, name);
    if (found == NULL || !(PyFloat_CheckExact(value) || PyLong_CheckExact(value) || PyBool_Check(value)))
        return;
    number = PyFloat_AsDouble(value);
    if (PyErr_Occurred())
        return; /* larger than any double */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(found); i++)
        compare(self, &self->watched[PyLong_AsLong(PyTuple_GET_ITEM(found, i))], number);
}

static PyObject *trigger_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    sonde_Trigger *self = (sonde_Trigger *)callable;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    if (n == 6 && PyUnicode_Check(args[0]) && PyUnicode_CompareWithASCIIString(args[0], "count") == 0) {
        see_counter(self, args[2], args[5]);
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (self->other == NULL)
        Py_RETURN_NONE;
    return PyObject_Vectorcall(self->other, args, (size_t)n, kwnames);
}

static PyObject *trigger_watch_counter(sonde_Trigger *self, PyObject *args)
{
    PyObject *name;
    unsigned condition;
    sonde_trigger_counter one = {0};
    int is_below;
    if (!PyArg_ParseTuple(args, "IUdp", &condition, &name, &one.limit, &is_below) ||
        check(self, 0, condition) < 0)
        return NULL;
    PyObject *known = PyDict_GetItemWithError(self->counters, name);
    PyObject *more = Py_BuildValue("(I)", self->watched_n);
    PyObject *both = more == NULL || known == NULL ? Py_XNewRef(more) : PySequence_Concat(known, more);
    int status = both == NULL ? -1 : PyDict_SetItem(self->counters, name, both);
    Py_XDECREF(more);
    Py_XDECREF(both);
    if (status < 0)
        return NULL;
    one.condition = condition;
    one.is_below = (uint8_t)is_below;
    self->watched[self->watched_n++] = one; /* as many as there are conditions, at most */
    Py_RETURN_NONE;
}

static PyObject *trigger_watch_still(sonde_Trigger *self, PyObject *args)
{
    unsigned condition;
    long long limit_ns;
    if (!PyArg_ParseTuple(args, "IL", &condition, &limit_ns) || check(self, 0, condition) < 0)
        return NULL;
    sonde_store_relaxed(&self->still_limit_ns, limit_ns);
    sonde_store_relaxed(&self->still, limit_ns ? condition + 1 : 0);
    Py_RETURN_NONE;
}

static PyObject *trigger_watch_memory(sonde_Trigger *self, PyObject *args)
{
    unsigned condition;
    double limit;
    if (!PyArg_ParseTuple(args, "Id", &condition, &limit) || check(self, 0, condition) < 0)
        return NULL;
    self->memory_limit = limit;
    self->memory = condition + 1;
    Py_RETURN_NONE;
}

static PyObject *trigger_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *writer, *text, *conditions, *other;
    unsigned int most;
    static char *names[] = {"writer", "text", "conditions", "most", "other", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!IO", names, &sonde_WriterType, &writer,
                                     &sonde_TextType, &text, &PyList_Type, &conditions, &most, &other))
        return NULL;
    if (PyList_GET_SIZE(conditions) > SONDE_CONDITIONS)
        return PyErr_Format(PyExc_ValueError, "at most %d conditions", SONDE_CONDITIONS);
    sonde_Trigger *self = (sonde_Trigger *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = trigger_call;
    self->most = most;
    self->counters = PyDict_New();
    self->other = other == Py_None ? NULL : Py_NewRef(other);
    if (self->counters != NULL && sonde_writer_open(writer) == 0)
        self->map = sonde_writer_ring(writer, SONDE_TRIGGER_KINDS, &self->ring);
    if (self->map == NULL || take_texts(self, text, conditions) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int trigger_traverse(sonde_Trigger *self, visitproc visit, void *arg)
{
    Py_VISIT(self->other);
    return 0;
}

static int trigger_clear(sonde_Trigger *self)
{
    Py_CLEAR(self->other);
    return 0;
}

static void trigger_dealloc(sonde_Trigger *self)
{
    PyObject_GC_UnTrack(self);
    (void)trigger_clear(self);
    Py_CLEAR(self->counters);
    Py_CLEAR(self->map);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef trigger_methods[] = {
    {"start", (PyCFunction)trigger_start, METH_NOARGS, "Have the native thread watch the conditions."},
    {"stop", (PyCFunction)trigger_stop, METH_NOARGS, "Watch nothing any more."},
    {"arm", (PyCFunction)trigger_arm, METH_VARARGS,
     "arm(slot, condition, since_ns, due_ns, thread): the condition is met at that time, unless\n"
     "disarm() comes first."},
    {"disarm", (PyCFunction)trigger_disarm, METH_O, "disarm(slot)"},
    {"fire", (PyCFunction)trigger_fire, METH_O,
     "fire(condition): the condition is met now, in this thread, whose own stack says nothing. Returns\n"
     "whether it has been recorded already."},
    {"watch_counter", (PyCFunction)trigger_watch_counter, METH_VARARGS,
     "watch_counter(condition, name, limit, below): met when the counter passes the limit. Before\n"
     "start(), once for each condition."},
    {"watch_still", (PyCFunction)trigger_watch_still, METH_VARARGS,
     "watch_still(condition, limit_ns): met when no stack has changed for so long; 0: never. Before\n"
     "start(), or to change the limit."},
    {"watch_memory", (PyCFunction)trigger_watch_memory, METH_VARARGS,
     "watch_memory(condition, bytes): met once the process has had more. Before start()."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject sonde_TriggerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Trigger",
    .tp_basicsize = sizeof(sonde_Trigger),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Trigger(writer, text, conditions, most, other): writes a row with a stack whenever one of\n"
              "these conditions is met, at most so many in an hour. Call it with every event; those that\n"
              "are not of counters are passed on to `other`.",
    .tp_new = trigger_new,
    .tp_dealloc = (destructor)trigger_dealloc,
    .tp_traverse = (traverseproc)trigger_traverse,
    .tp_clear = (inquiry)trigger_clear,
    .tp_vectorcall_offset = offsetof(sonde_Trigger, call),
    .tp_call = PyVectorcall_Call,
    .tp_methods = trigger_methods,
};
