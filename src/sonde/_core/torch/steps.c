/* Steps: when a step of training or inference ends, and who wants to know. */
#include "torch/step_end.h"

#include <structmember.h>

/* We stop waiting for the user's own step ends after this many ends of other kinds, and this many
 * times the most that ever came between two of the user's. It is a count and not a time, so that
 * every rank gives up at the same step. */
enum { PATIENCE = 16, ROUNDS = 4 };

/* ---- a step that has ended -------------------------------------------------------------- */

static PyObject *make_step(PyTypeObject *type, long long number, long long begin_ns, long long end_ns,
                           PyObject *kind)
{
    sonde_Step *self = (sonde_Step *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->number = number;
    self->begin_ns = begin_ns;
    self->end_ns = end_ns;
    self->kind = Py_NewRef(kind);
    return (PyObject *)self;
}

static PyObject *step_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    long long number, begin_ns, end_ns;
    PyObject *kind;
    static char *names[] = {"number", "begin_ns", "end_ns", "kind", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LLLU", names, &number, &begin_ns, &end_ns, &kind))
        return NULL;
    return make_step(type, number, begin_ns, end_ns, kind);
}

static void step_dealloc(sonde_Step *self)
{
    Py_CLEAR(self->kind);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef step_members[] = {
    {"number", T_LONGLONG, offsetof(sonde_Step, number), READONLY, "The number of the step, from 0."},
    {"begin_ns", T_LONGLONG, offsetof(sonde_Step, begin_ns), READONLY, "When it began; 0: not known."},
    {"end_ns", T_LONGLONG, offsetof(sonde_Step, end_ns), READONLY, NULL},
    {"kind", T_OBJECT_EX, offsetof(sonde_Step, kind), READONLY, "What ended it."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject sonde_StepType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Step",
    .tp_basicsize = sizeof(sonde_Step),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Step(number, begin_ns, end_ns, kind): a step that has just ended.",
    .tp_new = step_new,
    .tp_dealloc = (destructor)step_dealloc,
    .tp_members = step_members,
};

/* ---- all of them ------------------------------------------------------------------------- */

static int is_ignored(sonde_Steps *self, PyObject *kind)
{
    int was_user = sonde_step_is(self->last, "user");
    if (sonde_step_is(kind, "user")) {
        if (was_user && self->ignored > self->most_ignored)
            self->most_ignored = self->ignored;
        self->ignored = 0;
    } else if (was_user && !sonde_step_is(kind, "end")) {
        return ++self->ignored <= PATIENCE + ROUNDS * self->most_ignored;
    }
    return 0;
}

static int notify(PyObject *listeners, PyObject *ended)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(listeners); i++) {
        PyObject *result = PyObject_CallOneArg(PyTuple_GET_ITEM(listeners, i), ended);
        if (result == NULL)
            return -1;
        Py_DECREF(result);
    }
    return 0;
}

int sonde_steps_end(sonde_Steps *self, PyObject *kind, long long *number)
{
    if (PyTuple_GET_SIZE(self->listeners) == 0 || is_ignored(self, kind))
        return 0;
    int64_t now_ns = sonde_clock_ns();
    PyObject *ended = make_step(&sonde_StepType, self->number, self->begin_ns, now_ns, kind);
    if (ended == NULL) {
        PyErr_Clear(); /* no memory: not the program's trouble */
        return 0;
    }
    if (number != NULL)
        *number = self->number;
    self->number++;
    self->begin_ns = now_ns;
    /* A step that was cut short says nothing about what ends the others. */
    if (!sonde_step_is(kind, "end"))
        Py_SETREF(self->last, Py_NewRef(kind));
    /* A listener may unsubscribe while it is called. */
    PyObject *listeners = Py_NewRef(self->listeners);
    int status = notify(listeners, ended);
    Py_DECREF(listeners);
    Py_DECREF(ended);
    return status < 0 ? -1 : 1;
}

static PyObject *steps_end(sonde_Steps *self, PyObject *kind)
{
    long long number;
    if (!PyUnicode_Check(kind))
        return PyErr_Format(PyExc_TypeError, "the kind of a step end must be a str");
    int status = sonde_steps_end(self, kind, &number);
    if (status < 0)
        return NULL;
    return status == 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(number);
}

static PyObject *steps_subscribe(sonde_Steps *self, PyObject *listener)
{
    Py_ssize_t n = PyTuple_GET_SIZE(self->listeners);
    PyObject *more = PyTuple_New(n + 1);
    if (more == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i <= n; i++)
        PyTuple_SET_ITEM(more, i, Py_NewRef(i < n ? PyTuple_GET_ITEM(self->listeners, i) : listener));
    Py_SETREF(self->listeners, more);
    Py_RETURN_NONE;
}

static PyObject *steps_unsubscribe(sonde_Steps *self, PyObject *listener)
{
    PyObject *left = PyList_New(0);
    for (Py_ssize_t i = 0; left != NULL && i < PyTuple_GET_SIZE(self->listeners); i++) {
        PyObject *one = PyTuple_GET_ITEM(self->listeners, i);
        if (one != listener && PyList_Append(left, one) < 0)
            Py_CLEAR(left);
    }
    PyObject *listeners = left == NULL ? NULL : PyList_AsTuple(left);
    Py_XDECREF(left);
    if (listeners == NULL)
        return NULL;
    Py_SETREF(self->listeners, listeners);
    Py_RETURN_NONE;
}

static PyObject *steps_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", names))
        return NULL;
    sonde_Steps *self = (sonde_Steps *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->last = PyUnicode_FromString("");
    self->listeners = PyTuple_New(0);
    if (self->last == NULL || self->listeners == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int steps_traverse(sonde_Steps *self, visitproc visit, void *arg)
{
    Py_VISIT(self->listeners);
    return 0;
}

static int steps_clear(sonde_Steps *self)
{
    PyObject *none = PyTuple_New(0); /* which exists already */
    if (none != NULL)
        Py_XSETREF(self->listeners, none);
    return 0;
}

static void steps_dealloc(sonde_Steps *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->listeners);
    Py_CLEAR(self->last);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef steps_methods[] = {
    {"subscribe", (PyCFunction)steps_subscribe, METH_O,
     "subscribe(listener): have listener(step) called at the end of every step."},
    {"unsubscribe", (PyCFunction)steps_unsubscribe, METH_O, "unsubscribe(listener)"},
    {"end", (PyCFunction)steps_end, METH_O,
     "end(kind): end the current step and begin the next one. Returns the number of the ended step;\n"
     "None if it is not over, or if nobody wants to know."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef steps_members[] = {
    {"number", T_LONGLONG, offsetof(sonde_Steps, number), READONLY, "The number of the current step."},
    {"begin_ns", T_LONGLONG, offsetof(sonde_Steps, begin_ns), READONLY,
     "When the current step began; 0: no step has ended yet."},
    {"last", T_OBJECT_EX, offsetof(sonde_Steps, last), READONLY, "What ended the last step."},
    {"_listeners", T_OBJECT_EX, offsetof(sonde_Steps, listeners), READONLY, "A tuple."},
    {"whole", T_BOOL, offsetof(sonde_Steps, whole), 0,
     "Whether a capture wants all steps to come recorded, whatever it costs."},
    {"profiled", T_BOOL, offsetof(sonde_Steps, profiled), 0, "The same for sonde.profiler."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject sonde_StepsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Steps",
    .tp_basicsize = sizeof(sonde_Steps),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Counts the steps of this process: see job/torch/steps.py.",
    .tp_new = steps_new,
    .tp_dealloc = (destructor)steps_dealloc,
    .tp_traverse = (traverseproc)steps_traverse,
    .tp_clear = (inquiry)steps_clear,
    .tp_methods = steps_methods,
    .tp_members = steps_members,
};
