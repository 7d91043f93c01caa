/* Where the program's loop shows itself at every step: in its optimizers and its loaders. */
#include "torch/step_end.h"

#include <string.h>
#include <structmember.h>

int sonde_host_failed(PyObject *host)
{
    static PyObject *name;
    if (name == NULL && (name = PyUnicode_InternFromString("failed")) == NULL)
        return -1;
    PyObject *failed = PyObject_GetAttr(host, name);
    int truth = failed == NULL ? -1 : PyObject_IsTrue(failed);
    Py_XDECREF(failed);
    return truth;
}

/* Is this object what a weak reference (or NULL) refers to? */
static int is_referent(PyObject *reference, PyObject *object)
{
    if (reference == NULL)
        return 0;
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = NULL;
    int status = PyWeakref_GetRef(reference, &found);
    Py_XDECREF(found);
    return status == 1 && found == object;
#else
    return PyWeakref_GET_OBJECT(reference) == object;
#endif
}

/* ---- optimizers ------------------------------------------------------------------------------- */

/* Torch lets a hook replace the arguments. */
static PyObject *optimizers_before(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t given)
{
    if (sonde_torch.epoch == 0 || given < 1)
        Py_RETURN_NONE;
    PyObject *both = NULL;
    if (given == 3 && PyTuple_Check(args[1]) && PyDict_Check(args[2]))
        both = sonde_time_closure(args[0], args[1], args[2]);
    sonde_optimizer_begin(args[0]);
    return both != NULL ? both : Py_NewRef(Py_None);
}

/* Return the name of its class without asking its metaclass, which may belong to the program. 0:
 * none. */
static uint32_t name_class(const sonde_TorchOptimizers *self, PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    const char *dot = strrchr(type->tp_name, '.');
    PyObject *name = type->tp_flags & Py_TPFLAGS_HEAPTYPE
                         ? Py_NewRef(((PyHeapTypeObject *)type)->ht_name)
                         : PyUnicode_FromString(dot == NULL ? type->tp_name : dot + 1);
    int64_t id = name == NULL ? -1 : sonde_text_id(self->text, name);
    Py_XDECREF(name);
    if (id < 0)
        PyErr_Clear();
    return id < 0 ? 0 : (uint32_t)id;
}

/* An optimizer inside a backward pass (in a hook of a gradient) or inside a module's forward: its
 * time is not theirs. */
static void take_from_outside(int64_t own_ns)
{
    sonde_torch_lane *lane = sonde_torch_tracer == NULL ? NULL : sonde_torch_here();
    if (lane == NULL)
        return;
    if (sonde_torch.back_since_ns != 0)
        sonde_torch.backward_ns -= own_ns;
    else if (lane == sonde_torch.lead && sonde_torch.forward_since_ns != 0)
        sonde_torch.forward_ns -= own_ns;
    if (lane->nodes_n > 0 && lane->nodes_n <= SONDE_TORCH_DEEP)
        lane->nodes[lane->nodes_n - 1].inner_ns += own_ns;
    else if (lane->passing > 0 && lane->open != SONDE_TORCH_NONE)
        sonde_torch_at(lane, lane->open)->inner_ns += own_ns;
}

static void note_done(sonde_TorchOptimizers *self, PyObject *optimizer)
{
    int64_t now_ns = sonde_clock_ns(), own_ns = 0, begin_ns = sonde_optimizer_end(optimizer, now_ns, &own_ns);
    if (begin_ns == 0)
        return; /* it began before we started */
    self->spent_ns += own_ns;
    take_from_outside(own_ns);
    if (self->done_n < SONDE_TORCH_DONE) {
        uint32_t name = name_class(self, optimizer);
        self->done[self->done_n].begin_ns = begin_ns;
        self->done[self->done_n].end_ns = now_ns;
        self->done[self->done_n].own_ns = own_ns;
        self->done[self->done_n++].name = name;
    }
}

static PyObject *optimizers_after(sonde_TorchOptimizers *self, PyObject *const *args, Py_ssize_t given)
{
    int failed = given < 1 ? 1 : sonde_host_failed(self->host);
    if (failed)
        return failed < 0 ? NULL : Py_NewRef(Py_None);
    note_done(self, args[0]);
    sonde_torch.is_evaluating = 0;
    if (!is_referent(self->lead, args[0]))
        return PyObject_CallOneArg(self->other, args[0]);
    if (PySet_GET_SIZE(self->since) > 0)
        (void)PySet_Clear(self->since);
    return sonde_steps_end(self->steps, self->kind, NULL) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *optimizers_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *host, *text, *steps, *kind, *other;
    static char *names[] = {"host", "text", "steps", "kind", "other", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!UO", names, &host, &sonde_TextType, &text,
                                     &sonde_StepsType, &steps, &kind, &other))
        return NULL;
    sonde_TorchOptimizers *self = (sonde_TorchOptimizers *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->host = Py_NewRef(host);
    self->text = Py_NewRef(text);
    self->steps = (sonde_Steps *)Py_NewRef(steps);
    self->kind = Py_NewRef(kind);
    self->other = Py_NewRef(other);
    self->since = PySet_New(NULL);
    if (self->since == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int optimizers_traverse(sonde_TorchOptimizers *self, visitproc visit, void *arg)
{
    Py_VISIT(self->host);
    Py_VISIT(self->steps);
    Py_VISIT(self->other);
    return 0;
}

static void optimizers_dealloc(sonde_TorchOptimizers *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->host);
    Py_CLEAR(self->text);
    Py_CLEAR(self->steps);
    Py_CLEAR(self->kind);
    Py_CLEAR(self->other);
    Py_CLEAR(self->lead);
    Py_CLEAR(self->since);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef optimizers_methods[] = {
    {"before", (PyCFunction)(void (*)(void))optimizers_before, METH_FASTCALL,
     "before(optimizer, args, kwargs): note that an optimizer begins its step."},
    {"after", (PyCFunction)(void (*)(void))optimizers_after, METH_FASTCALL,
     "after(optimizer, args, kwargs): note that it has made its step; if it is the lead, a step of\n"
     "training ends."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef optimizers_members[] = {
    {"lead", T_OBJECT, offsetof(sonde_TorchOptimizers, lead), 0, "A weak reference to the optimizer that ends steps, or None."},
    {"since", T_OBJECT_EX, offsetof(sonde_TorchOptimizers, since), READONLY,
     "Ids of the optimizers that made a step since the lead did."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject sonde_TorchOptimizersType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.TorchOptimizers",
    .tp_basicsize = sizeof(sonde_TorchOptimizers),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "TorchOptimizers(host, text, steps, kind, other): hooks for torch's optimizers.",
    .tp_new = optimizers_new,
    .tp_dealloc = (destructor)optimizers_dealloc,
    .tp_traverse = (traverseproc)optimizers_traverse,
    .tp_methods = optimizers_methods,
    .tp_members = optimizers_members,
};

/* ---- loaders ------------------------------------------------------------------------------------ */

/* Returns 0, or -1 with an exception of the program. An exception that is already set, mostly a
 * StopIteration, stays set. */
static int meet(sonde_TorchNext *self, PyObject *iterator)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    /* A weak reference: the workers end when the program lets go of the iterator. */
    PyObject *reference = PyWeakref_NewRef(iterator, NULL);
    if (reference == NULL)
        PyErr_Clear();
    Py_XSETREF(self->last, reference);
    PyObject *result = PyObject_CallOneArg(self->meet, iterator);
    Py_XDECREF(result);
    if (result != NULL) {
        PyErr_Restore(type, value, trace);
        return 0;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return -1;
}

static PyObject *next_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    sonde_TorchNext *self = (sonde_TorchNext *)callable;
    int64_t begin_ns = sonde_clock_ns();
    PyObject *result = PyObject_Vectorcall(self->original, args, nargsf, kwnames);
    int64_t end_ns = sonde_clock_ns();
    if (self->first_ns == 0)
        self->first_ns = begin_ns;
    self->spent_ns += end_ns - begin_ns;
    self->last_ns = end_ns;
    sonde_torch.has_batch = 1;
    if (PyVectorcall_NARGS(nargsf) > 0 && !is_referent(self->last, args[0]) &&
        meet(self, args[0]) < 0)
        Py_CLEAR(result);
    return result;
}

static PyObject *next_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyObject *next_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *original, *meet_it;
    static char *names[] = {"original", "meet", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &original, &meet_it))
        return NULL;
    sonde_TorchNext *self = (sonde_TorchNext *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = next_call;
    self->original = Py_NewRef(original);
    self->meet = Py_NewRef(meet_it);
    return (PyObject *)self;
}

static int next_traverse(sonde_TorchNext *self, visitproc visit, void *arg)
{
    Py_VISIT(self->original);
    Py_VISIT(self->meet);
    return 0;
}

static void next_dealloc(sonde_TorchNext *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->original);
    Py_CLEAR(self->meet);
    Py_CLEAR(self->last);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *next_attribute(PyObject *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return found;
    PyErr_Clear();
    return PyObject_GetAttr(((sonde_TorchNext *)self)->original, name);
}

static PyMemberDef next_members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(sonde_TorchNext, original), READONLY, "The original."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject sonde_TorchNextType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.TorchNext",
    .tp_basicsize = sizeof(sonde_TorchNext),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_doc = "TorchNext(original, meet): as a method of a class, measures how long `next()` takes.",
    .tp_new = next_new,
    .tp_dealloc = (destructor)next_dealloc,
    .tp_traverse = (traverseproc)next_traverse,
    .tp_vectorcall_offset = offsetof(sonde_TorchNext, call),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = next_get,
    .tp_getattro = next_attribute,
    .tp_members = next_members,
};
