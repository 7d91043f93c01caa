/* ChainedHook: stands in sys.excepthook, threading.excepthook, os._exit or sys.exit, tells a listener, and then
 * calls what was there before.
 *
 * This is in C so that it has no frame: if the hook behind it fails, Python prints a traceback that
 * starts here, and that must look as it does without us. Where a built-in function was, another one
 * stands, which says the same of itself (`function`): its name, text, signature, module.
 */
#include "exceptions/chained_hook.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *listener; /* None: it only calls the other hook */
    PyObject *previous;
    PyObject *function; /* what stands for it, or NULL for itself; never freed */
} HookObject;

/* One for each built-in function that was ever in front of the program's; none is given back, because
 * the program may keep it. */
enum { MOST_FUNCTIONS = 4 };
typedef struct {
    PyMethodDef def;
    PyObject *original, *function;
    HookObject *hook; /* the newest for this original */
} covering;
static covering coverings[MOST_FUNCTIONS];
static int count;
static sonde_exclusion turn = SONDE_EXCLUSION; /* of these */

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
        /* Only os._exit takes a keyword, for its one argument: `os._exit(status=1)`. */
        size_t named = kwnames == NULL ? 0 : (size_t)PyTuple_GET_SIZE(kwnames);
        PyObject *answer =
            PyObject_Vectorcall(listener, args, (size_t)PyVectorcall_NARGS(nargsf) + named, NULL);
        if (answer == NULL)
            PyErr_Clear(); /* the listener catches its own exceptions; this is a lack of memory */
        Py_XDECREF(answer);
    }
    Py_DECREF(listener);
    PyObject *result = PyObject_Vectorcall(previous, args, (size_t)PyVectorcall_NARGS(nargsf), kwnames);
    Py_DECREF(previous);
    return result;
}

static PyObject *call_covering(covering *one, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    PyObject *hook;
    SONDE_EXCLUDE_BEGIN(&turn)
    hook = Py_NewRef(one->hook);
    SONDE_EXCLUDE_END
    PyObject *result = hook_call(hook, args, (size_t)n, names);
    Py_DECREF(hook);
    return result;
}

/* A built-in function is given no place of ours to keep which one it is: `__self__` is the module. */
#define CALL(at) \
    static PyObject *call_##at(PyObject *Py_UNUSED(m), PyObject *const *args, Py_ssize_t n, PyObject *names) \
    { \
        return call_covering(&coverings[at], args, n, names); \
    }
CALL(0)
CALL(1)
CALL(2)
CALL(3)
typedef PyObject *fast_call(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
static fast_call *const calls[MOST_FUNCTIONS] = {call_0, call_1, call_2, call_3};

/* Have a built-in function in place of the one behind this hook; without one if they are all in use.
 * Returns -1 with an exception if there is no memory. */
static int find_function(HookObject *self)
{
    covering *one = coverings;
    while (one < coverings + count && one->original != self->previous)
        one++;
    if (one == coverings + MOST_FUNCTIONS)
        return 0;
    if (one == coverings + count) {
        PyCFunctionObject *original = (PyCFunctionObject *)self->previous;
        one->def = *original->m_ml;
        one->def.ml_meth = (PyCFunction)(void (*)(void))calls[count];
        one->def.ml_flags = METH_FASTCALL | METH_KEYWORDS;
        one->function = PyCFunction_NewEx(&one->def, original->m_self, original->m_module);
        if (one->function == NULL)
            return -1;
        one->original = Py_NewRef(self->previous);
        count++;
    }
    Py_XSETREF(one->hook, (HookObject *)Py_NewRef(self));
    self->function = one->function;
    return 0;
}

static PyObject *hook_function(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *function = ((HookObject *)self)->function;
    return Py_NewRef(function == NULL ? self : function);
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
    int failed = 0;
    if (PyCFunction_CheckExact(previous)) {
        SONDE_EXCLUDE_BEGIN(&turn)
        failed = find_function(self);
        SONDE_EXCLUDE_END
    }
    if (failed)
        Py_CLEAR(self);
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

static PyGetSetDef hook_getset[] = {
    {"function", hook_function, NULL,
     "What to put in the place of the previous hook: where that is a built-in function, one like it.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
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
    .tp_getset = hook_getset,
};
