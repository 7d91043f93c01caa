/* ChainedHook: stands in sys.excepthook, threading.excepthook, os._exit or sys.exit, tells a listener, and then
 * calls what was there before.
 *
 * This is in C so that it has no frame: if the hook behind it fails, Python prints a traceback that
 * starts here, and that must look as it does without us.
 */
#include "exceptions/chained_hook.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *listener; /* None: it only calls the other hook */
    PyObject *previous;
} HookObject;

static PyObject *hook_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    HookObject *self = (HookObject *)callable;
    /* The listener may end the recording, and the program may drop this object. */
    PyObject *listener, *previous;
    SONDE_EXCLUDE_BEGIN(self)
    listener = Py_NewRef(self->listener);
    previous = Py_NewRef(self->previous);
    SONDE_EXCLUDE_END
    if (listener != Py_None) {
        PyObject *answer = PyObject_Vectorcall(listener, args, (size_t)PyVectorcall_NARGS(nargsf), NULL);
        if (answer == NULL)
            PyErr_Clear(); /* the listener catches its own exceptions; this is a lack of memory */
        Py_XDECREF(answer);
    }
    Py_DECREF(listener);
    PyObject *result = PyObject_Vectorcall(previous, args, (size_t)PyVectorcall_NARGS(nargsf), kwnames);
    Py_DECREF(previous);
    return result;
}

static PyObject *hook_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *listener, *previous;
    static char *names[] = {"listener", "previous", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &listener, &previous))
        return NULL;
    HookObject *self = (HookObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = hook_call;
    self->listener = Py_NewRef(listener);
    self->previous = Py_NewRef(previous);
    return (PyObject *)self;
}

static int hook_traverse(HookObject *self, visitproc visit, void *arg)
{
    Py_VISIT(self->listener);
    Py_VISIT(self->previous);
    return 0;
}

static int hook_clear(HookObject *self)
{
    /* Not `previous`: the hook must work for as long as somebody can call it. */
    Py_SETREF(self->listener, Py_NewRef(Py_None));
    return 0;
}

static void hook_dealloc(HookObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->listener);
    Py_CLEAR(self->previous);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* A program that asks for the name, module or text of the hook gets what it would get without us. */
static PyObject *hook_attribute(PyObject *self, PyObject *name)
{
    if (PyUnicode_CompareWithASCIIString(name, "__doc__") == 0)
        return PyObject_GetAttr(((HookObject *)self)->previous, name);
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return found;
    PyErr_Clear();
    return PyObject_GetAttr(((HookObject *)self)->previous, name);
}

static PyObject *hook_repr(PyObject *self) { return PyObject_Repr(((HookObject *)self)->previous); }

/* Returns the name by which other processes find the previous hook where we stand here; NULL without
 * an exception if there is none. */
static PyObject *find_name(PyObject *self)
{
    PyObject *previous = ((HookObject *)self)->previous, *found = NULL;
    PyObject *name = PyObject_GetAttrString(previous, "__name__");
    PyObject *module_name = PyObject_GetAttrString(previous, "__module__");
    PyObject *module = module_name == NULL ? NULL : PyImport_GetModule(module_name);
    if (name != NULL && module != NULL)
        found = PyObject_GetAttr(module, name);
    PyErr_Clear();
    Py_XDECREF(module_name);
    Py_XDECREF(module);
    Py_XDECREF(found);
    if (found == self)
        return name;
    Py_XDECREF(name);
    return NULL;
}

/* What stands in os._exit and sys.exit may be sent to another process, which may not have us. */
static PyObject *hook_reduce(PyObject *self, PyObject *Py_UNUSED(none))
{
    PyObject *name = find_name(self);
    if (name != NULL)
        return name;
    PyObject *functools = PyImport_ImportModule("functools");
    PyObject *partial = functools == NULL ? NULL : PyObject_GetAttrString(functools, "partial");
    Py_XDECREF(functools);
    return partial == NULL ? NULL : Py_BuildValue("N(O)", partial, ((HookObject *)self)->previous);
}

static PyMethodDef hook_methods[] = {
    {"__reduce__", hook_reduce, METH_NOARGS, "Be pickled as what only calls the previous hook."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef hook_members[] = {
    {"listener", T_OBJECT_EX, offsetof(HookObject, listener), 0, "Called first; or None."},
    {"previous", T_OBJECT_EX, offsetof(HookObject, previous), READONLY, "The hook that was there before."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject sonde_ChainedHookType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.ChainedHook",
    .tp_basicsize = sizeof(HookObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "ChainedHook(listener, previous): call the listener, and then the previous hook with the\n"
              "same arguments, whatever the listener does.",
    .tp_new = hook_new,
    .tp_dealloc = (destructor)hook_dealloc,
    .tp_traverse = (traverseproc)hook_traverse,
    .tp_clear = (inquiry)hook_clear,
    .tp_vectorcall_offset = offsetof(HookObject, call),
    .tp_call = PyVectorcall_Call,
    .tp_getattro = hook_attribute,
    .tp_repr = hook_repr,
    .tp_members = hook_members,
    .tp_methods = hook_methods,
};
