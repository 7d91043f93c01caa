/* The functions that Python's library starts processes with, covered: each calls the covered one, and
 * then tells a listener.
 *
 * This is in C so that it has no frame: what the covered function raises is printed as it is without
 * us. Each is a built-in function with the name of the one behind it. */
#include "spawns/spawner.h"
#include "format/format.h"

enum { MOST_SPAWNERS = 3 };

typedef struct {
    PyMethodDef def;
    PyObject *covered, *listener; /* set once: never given back */
} spawner;

static spawner spawners[MOST_SPAWNERS];
static int count;

static PyObject *call(const spawner *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    long long begin_ns = sonde_clock_ns();
    PyObject *child = PyObject_Vectorcall(self->covered, args, (size_t)n, names);
    if (child == NULL)
        return NULL;
    PyObject *answer = PyObject_CallFunction(self->listener, "sLOO", self->def.ml_name, begin_ns, child,
                                             n > 0 ? args[0] : Py_None);
    if (answer == NULL) /* a signal's handler has raised, as it may after any call */
        Py_CLEAR(child);
    Py_XDECREF(answer);
    return child;
}

static PyObject *call_first(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    return call(&spawners[0], args, n, names);
}

static PyObject *call_second(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    return call(&spawners[1], args, n, names);
}

static PyObject *call_third(PyObject *Py_UNUSED(self), PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    return call(&spawners[2], args, n, names);
}

typedef PyObject *(*spawner_call)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
static const spawner_call calls[MOST_SPAWNERS] = {call_first, call_second, call_third};

static PyObject *cover_spawner(PyObject *Py_UNUSED(core), PyObject *args)
{
    PyObject *covered, *listener;
    if (!PyArg_ParseTuple(args, "O!O", &PyCFunction_Type, &covered, &listener))
        return NULL;
    if (count == MOST_SPAWNERS) {
        PyErr_SetString(PyExc_RuntimeError, "all spawners are in use");
        return NULL;
    }
    spawner *one = &spawners[count];
    *one = (spawner){
        .def = *((PyCFunctionObject *)covered)->m_ml,
        .covered = Py_NewRef(covered),
        .listener = Py_NewRef(listener),
    };
    one->def.ml_meth = (PyCFunction)(void (*)(void))calls[count++];
    one->def.ml_flags = METH_FASTCALL | METH_KEYWORDS;
    PyCFunctionObject *original = (PyCFunctionObject *)covered;
    return PyCFunction_NewEx(&one->def, original->m_self, original->m_module);
}

PyMethodDef sonde_spawner_methods[] = {
    {"cover_spawner", cover_spawner, METH_VARARGS,
     "Return a built-in function that calls `covered`, a built-in function that starts a process, and then\n"
     "listener(name, begin_ns, child, first), with its first argument."},
    {NULL, NULL, 0, NULL},
};
