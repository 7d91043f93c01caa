/* The time that optimizers take for themselves: without the closures that the program gives them,
 * which call the model and go backward, and without optimizers inside them. */
#include "torch/step_end.h"

#include <string.h>
#include <structmember.h>

enum { DEEP = 8 }; /* optimizers inside optimizers; the outermost of more is not timed */

typedef struct {
    const void *optimizer;
    int64_t begin_ns, inner_ns;
} begun_step;

/* The optimizers that are making their steps in this thread, outermost first. One that raised
 * stays until it begins again: there is no hook for that. */
static __thread struct {
    uint32_t epoch, n;
    uint32_t closures; /* in progress, which is always exact */
    begun_step steps[DEEP];
} begun;

static int find_begun(const void *optimizer)
{
    int at = begun.epoch == sonde_torch.epoch ? (int)begun.n - 1 : -1;
    while (at >= 0 && begun.steps[at].optimizer != optimizer)
        at--;
    return at;
}

void sonde_optimizer_begin(const void *optimizer)
{
    int at = find_begun(optimizer);
    if (at >= 0)
        begun.n = (uint32_t)at;
    if (begun.epoch != sonde_torch.epoch)
        begun.n = 0;
    if (begun.n == DEEP)
        memmove(begun.steps, begun.steps + 1, --begun.n * sizeof *begun.steps);
    begun.epoch = sonde_torch.epoch;
    begun.steps[begun.n++] = (begun_step){optimizer, sonde_clock_ns(), 0};
}

int64_t sonde_optimizer_end(const void *optimizer, int64_t now_ns, int64_t *own_ns)
{
    int at = find_begun(optimizer);
    if (at < 0)
        return 0;
    begun.n = (uint32_t)at;
    int64_t took_ns = now_ns - begun.steps[at].begin_ns;
    if (at > 0)
        begun.steps[at - 1].inner_ns += took_ns;
    *own_ns = took_ns > begun.steps[at].inner_ns ? took_ns - begun.steps[at].inner_ns : 0;
    return begun.steps[at].begin_ns;
}

int sonde_in_closure(void) { return begun.closures > 0; }

/* ---- closures ---------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *original;
} ClosureObject;

static PyObject *closure_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    const void *optimizer = begun.n > 0 ? begun.steps[begun.n - 1].optimizer : NULL;
    int64_t begin_ns = sonde_clock_ns();
    begun.closures++;
    PyObject *result = PyObject_Vectorcall(((ClosureObject *)callable)->original, args, nargsf, kwnames);
    begun.closures--;
    int at = optimizer == NULL ? -1 : find_begun(optimizer);
    if (at >= 0)
        begun.steps[at].inner_ns += sonde_clock_ns() - begin_ns;
    return result;
}

static int closure_traverse(ClosureObject *self, visitproc visit, void *arg)
{
    Py_VISIT(self->original);
    return 0;
}

static int closure_clear(ClosureObject *self)
{
    Py_CLEAR(self->original);
    return 0;
}

static void closure_dealloc(ClosureObject *self)
{
    PyObject_GC_UnTrack(self);
    (void)closure_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *closure_attribute(PyObject *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return found;
    PyErr_Clear();
    return PyObject_GetAttr(((ClosureObject *)self)->original, name);
}

static PyMemberDef closure_members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(ClosureObject, original), READONLY, "The original."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject closure_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.TorchClosure",
    .tp_basicsize = sizeof(ClosureObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_dealloc = (destructor)closure_dealloc,
    .tp_traverse = (traverseproc)closure_traverse,
    .tp_clear = (inquiry)closure_clear,
    .tp_vectorcall_offset = offsetof(ClosureObject, call),
    .tp_call = PyVectorcall_Call,
    .tp_getattro = closure_attribute,
    .tp_members = closure_members,
};

static PyObject *make_closure(PyObject *original)
{
    if (PyType_Ready(&closure_type) < 0)
        return NULL;
    ClosureObject *self = (ClosureObject *)closure_type.tp_alloc(&closure_type, 0);
    if (self == NULL)
        return NULL;
    self->call = closure_call;
    self->original = Py_NewRef(original);
    return (PyObject *)self;
}

static int is_closure(PyObject *object, int is_named)
{
    if (Py_IS_TYPE(object, &closure_type))
        return 0; /* an optimizer hands it on to the one inside it */
    if (PyFunction_Check(object) || PyMethod_Check(object) || PyCFunction_Check(object))
        return 1;
    return is_named && PyCallable_Check(object) && !PyType_Check(object);
}

static PyObject *replace_at(PyObject *args, Py_ssize_t at, PyObject *closure, PyObject *kwargs)
{
    PyObject *list = PySequence_List(args), *more = NULL;
    if (list != NULL && PyList_SetItem(list, at, Py_NewRef(closure)) == 0)
        more = PyList_AsTuple(list);
    Py_XDECREF(list);
    PyObject *both = more == NULL ? NULL : PyTuple_Pack(2, more, kwargs);
    Py_XDECREF(more);
    return both;
}

static PyObject *replace_named(PyObject *args, PyObject *closure, PyObject *kwargs)
{
    PyObject *more = PyDict_Copy(kwargs), *both = NULL;
    if (more != NULL && PyDict_SetItemString(more, "closure", closure) == 0)
        both = PyTuple_Pack(2, args, more);
    Py_XDECREF(more);
    return both;
}

PyObject *sonde_time_closure(PyObject *optimizer, PyObject *args, PyObject *kwargs)
{
    PyObject *named = PyDict_GetItemString(kwargs, "closure"); /* borrowed */
    Py_ssize_t n = PyTuple_GET_SIZE(args), at = n > 0 && PyTuple_GET_ITEM(args, 0) == optimizer;
    PyObject *given = named != NULL ? named : at < n ? PyTuple_GET_ITEM(args, at) : NULL;
    if (given == NULL || given == Py_None || !is_closure(given, named != NULL))
        return NULL;
    PyObject *closure = make_closure(given);
    PyObject *both = closure == NULL ? NULL
                     : named != NULL ? replace_named(args, closure, kwargs)
                                     : replace_at(args, at, closure, kwargs);
    Py_XDECREF(closure);
    PyErr_Clear(); /* no memory: not the program's trouble */
    return both;
}
