/* TorchGradientTimes: when the gradient of each parameter was ready.
 *
 * Torch calls one of our objects after it has accumulated a gradient. The object is in C because
 * it is called once for each parameter and step, in the thread that runs backward: an empty
 * Python function takes five times as long. Torch takes the GIL for the call, so nothing has to
 * be locked. */
#include "torch/torch.h"

#include <string.h>

typedef struct {
    int64_t t_ns;
    uint32_t key;
} entry;

typedef struct {
    PyObject_HEAD
    entry *entries;
    Py_ssize_t count, capacity;
    unsigned long long lost; /* since the beginning */
} TimesObject;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    TimesObject *times;
    uint32_t key;
} TimeObject;

/* ---- one parameter ----------------------------------------------------------------------- */

static PyObject *time_call(PyObject *callable, PyObject *const *Py_UNUSED(args),
                           size_t Py_UNUSED(nargsf), PyObject *Py_UNUSED(kwnames))
{
    TimeObject *self = (TimeObject *)callable;
    TimesObject *times = self->times;
    if (times->count < times->capacity)
        times->entries[times->count++] = (entry){sonde_clock_ns(), self->key};
    else
        times->lost++;
    Py_RETURN_NONE;
}

static void time_dealloc(TimeObject *self)
{
    Py_CLEAR(self->times);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject sonde_TorchGradientTimeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.TorchGradientTime",
    .tp_basicsize = sizeof(TimeObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Made by TorchGradientTimes.make(): call it with anything, and it notes the time.",
    .tp_dealloc = (destructor)time_dealloc,
    .tp_vectorcall_offset = offsetof(TimeObject, call),
    .tp_call = PyVectorcall_Call,
};

/* ---- TorchGradientTimes ----------------------------------------------------------------- */

static PyObject *times_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t capacity;
    static char *names[] = {"capacity", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n", names, &capacity))
        return NULL;
    if (capacity < 1 || capacity > 1 << 24)
        return PyErr_Format(PyExc_ValueError, "capacity must be 1 to %d", 1 << 24);
    TimesObject *self = (TimesObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->entries = PyMem_Calloc((size_t)capacity, sizeof *self->entries);
    if (self->entries == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->capacity = capacity;
    return (PyObject *)self;
}

static void times_dealloc(TimesObject *self)
{
    PyMem_Free(self->entries);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *times_make(TimesObject *self, PyObject *number)
{
    unsigned long key = PyLong_AsUnsignedLong(number);
    if (key == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    if (key > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a key must fit into 32 bits");
        return NULL;
    }
    TimeObject *noter = PyObject_New(TimeObject, &sonde_TorchGradientTimeType);
    if (noter == NULL)
        return NULL;
    noter->call = time_call;
    noter->times = (TimesObject *)Py_NewRef(self);
    noter->key = (uint32_t)key;
    return (PyObject *)noter;
}

static PyObject *times_take(TimesObject *self, PyObject *Py_UNUSED(none))
{
    /* Making objects may run a garbage collection, and that may run any code, even a backward
     * pass that adds times. So the entries are copied before the first object is made. */
    Py_ssize_t count = self->count;
    entry *taken = PyMem_Malloc(count ? (size_t)count * sizeof *taken : 1);
    if (taken == NULL)
        return PyErr_NoMemory();
    memcpy(taken, self->entries, (size_t)count * sizeof *taken);
    self->count = 0;
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *pair = Py_BuildValue("Lk", (long long)taken[i].t_ns, (unsigned long)taken[i].key);
        if (pair == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, pair);
    }
    PyMem_Free(taken);
    return list;
}

static PyObject *times_lost(TimesObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->lost);
}

/* Set what is found under the name `__call__`. The slot of the type stays ours; only code that
 * looks up `__call__` by name, like a compiler that traces hooks, finds this function instead. */
static PyObject *times_show(PyObject *Py_UNUSED(type), PyObject *function)
{
    if (PyDict_SetItemString(sonde_TorchGradientTimeType.tp_dict, "__call__", function) < 0)
        return NULL;
    PyType_Modified(&sonde_TorchGradientTimeType);
    Py_RETURN_NONE;
}

static PyMethodDef times_methods[] = {
    {"show", (PyCFunction)times_show, METH_O | METH_STATIC,
     "show(function): set what a lookup of `__call__` finds; calls are not affected."},
    {"make", (PyCFunction)times_make, METH_O, "make(key): return a callable that notes the time."},
    {"take", (PyCFunction)times_take, METH_NOARGS, "Return [(t_ns, key), …] since the last call."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef times_getset[] = {
    {"lost", (getter)times_lost, NULL, "How many gradient times were lost for lack of room.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject sonde_TorchGradientTimesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.TorchGradientTimes",
    .tp_basicsize = sizeof(TimesObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "TorchGradientTimes(capacity): room for so many times between two calls of take().",
    .tp_new = times_new,
    .tp_dealloc = (destructor)times_dealloc,
    .tp_methods = times_methods,
    .tp_getset = times_getset,
};
