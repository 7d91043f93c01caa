/* GcCallback: what Python's garbage collector calls around each collection.
 *
 * This is in C because of signals: a Ctrl-C that arrives while a callback written in Python runs
 * is raised inside the callback, and the collector throws it away.
 */
#include "gc/gc_callback.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *writer;
    int64_t start_ns; /* 0: no collection is running */
} GcObject;

static PyObject *number_in(PyObject *info, const char *name)
{
    PyObject *value = PyDict_Check(info) ? PyDict_GetItemString(info, name) : NULL;
    return value == NULL ? Py_None : value;
}

static PyObject *gc_call(PyObject *callable, PyObject *const *args, size_t nargsf,
                         PyObject *Py_UNUSED(kwnames))
{
    GcObject *self = (GcObject *)callable;
    int64_t now = sonde_clock_ns();
    if (PyVectorcall_NARGS(nargsf) != 2 || !PyUnicode_Check(args[0]))
        Py_RETURN_NONE;
    if (PyUnicode_CompareWithASCIIString(args[0], "start") == 0) {
        self->start_ns = now;
        Py_RETURN_NONE;
    }
    if (self->start_ns == 0)
        Py_RETURN_NONE;
    PyObject *values[5] = {
        PyLong_FromLongLong(self->start_ns),      PyLong_FromLongLong(now - self->start_ns),
        number_in(args[1], "generation"),         number_in(args[1], "collected"),
        number_in(args[1], "uncollectable"),
    };
    self->start_ns = 0;
    if (values[0] != NULL && values[1] != NULL)
        Py_XDECREF(PyObject_Vectorcall(self->writer, values, 5, NULL));
    Py_XDECREF(values[0]);
    Py_XDECREF(values[1]);
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyObject *gc_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *writer;
    static char *names[] = {"writer", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, &sonde_WriterType, &writer))
        return NULL;
    GcObject *self = (GcObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = gc_call;
    self->writer = Py_NewRef(writer);
    return (PyObject *)self;
}

static void gc_dealloc(GcObject *self)
{
    Py_CLEAR(self->writer);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject sonde_GcCallbackType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.GcCallback",
    .tp_basicsize = sizeof(GcObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "GcCallback(writer): for gc.callbacks; writes start, duration, generation, collected "
              "and uncollectable.",
    .tp_new = gc_new,
    .tp_dealloc = (destructor)gc_dealloc,
    .tp_vectorcall_offset = offsetof(GcObject, call),
    .tp_call = PyVectorcall_Call,
};
