/* What Python calls around each os.fork().
 *
 * This is in C because of its cost. In a child, each page that is touched has to be copied, and a
 * few lines of Python touch a hundred: many children live for less time than that takes. So the
 * child starts one thread here, and everything else waits until its recording begins.
 */
#include "binding/binding.h"
#include "kernel/fork.h"
#include "kernel/thread.h"

#include <frameobject.h> /* PyFrame_GetBack(), on Python 3.10 */
#include <unistd.h>

#define WARNS_AFTER_HOOKS (PY_VERSION_HEX >= 0x030D0000)

SONDE_CHANGED_IN_CHILD static struct {
    PyObject *begin; /* NULL: children are not recorded */
    int64_t delay_ns;
    uint32_t forks; /* sonde_forks when fork_child() was called */
    uint32_t settled; /* sonde_forks when fork_settled() was called */
} child;

static PyObject *follow_forks(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *begin;
    long long delay_ns;
    if (!PyArg_ParseTuple(args, "OL", &begin, &delay_ns))
        return NULL;
    Py_XSETREF(child.begin, begin == Py_None ? NULL : Py_NewRef(begin));
    child.delay_ns = delay_ns;
    Py_RETURN_NONE;
}

/* Called before the first fork after a module was imported. */
static struct {
    PyObject *module, *call;
} first;

static PyObject *fork_after_import(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *name, *call;
    if (!PyArg_ParseTuple(args, "UO", &name, &call))
        return NULL;
    Py_XSETREF(first.module, Py_NewRef(name));
    Py_XSETREF(first.call, Py_NewRef(call));
    Py_RETURN_NONE;
}

/* A few lines of Python before each fork would cost more than the fork's own. */
static void make_first_call(void)
{
    if (first.call == NULL || !PyDict_GetItemWithError(PyImport_GetModuleDict(), first.module))
        return;
    PyObject *result = PyObject_CallNoArgs(first.call);
    if (result == NULL)
        PyErr_WriteUnraisable(first.call);
    if (result != Py_False) /* false: the import has not ended yet */
        Py_CLEAR(first.call);
    Py_XDECREF(result);
}

/* ---- threads of ours ----------------------------------------------------------------------- */

static struct {
    void (*rest)(void), (*wake)(void);
} others[4];

void sonde_at_fork(void (*rest)(void), void (*wake)(void))
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (others[i].rest == NULL) {
            others[i].wake = wake;
            others[i].rest = rest;
        }
        if (others[i].rest == rest)
            return;
    }
}

static void call_others(int is_rest)
{
    for (size_t i = 0; SONDE_PYTHON_WARNS && i < sizeof others / sizeof *others && others[i].rest != NULL; i++)
        (is_rest ? others[i].rest : others[i].wake)();
}

static PyObject *fork_rest(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    make_first_call();
    sonde_later_rest();
    sonde_native_threads_rest();
    call_others(1);
    if (SONDE_PYTHON_WARNS)
        sonde_threads_await_gone();
    Py_RETURN_NONE;
}

static int wake_all(void *Py_UNUSED(arg))
{
    call_others(0);
    sonde_native_threads_wake();
    sonde_later_wake();
    return 0;
}

/* The frame that forks, which is only compared, and until when our threads wait for hooks of others. */
static PyFrameObject *forking;
static int64_t until_ns;

enum {
    HOOK_DEPTH = 64,          /* calls that a hook of somebody else is deep, at most */
    LONGEST_HOOKS = 50000000, /* nanoseconds */
};

/* Does the frame that forks wait for a call of its own, which is os.fork() with its hooks? */
static int is_in_hook(void)
{
    PyFrameObject *frame = PyEval_GetFrame();
    if (frame == NULL || frame == forking)
        return 0;
    Py_INCREF(frame);
    for (int depth = 0; frame != NULL && frame != forking && depth < HOOK_DEPTH; depth++) {
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    int is_below = frame != NULL && frame == forking;
    Py_XDECREF(frame);
    return is_below;
}

static int wake_after_fork(void *Py_UNUSED(arg))
{
    if (sonde_clock_ns() < until_ns && is_in_hook() && Py_AddPendingCall(wake_after_fork, NULL) == 0)
        return 0;
    return wake_all(NULL);
}

/* Python 3.13 counts threads after this hook and warns of them, so ours must come back only when
 * fork() has returned: at the next safe point of this thread that is not inside of another hook, such
 * as those of logging. Only the main thread has such calls made; another one may not wait for it,
 * because the main thread may stay in C code for long. */
static PyObject *fork_wake(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    int can_wait = WARNS_AFTER_HOOKS && sonde_find_tid() == getpid();
    if (can_wait) {
        forking = PyEval_GetFrame();
        until_ns = sonde_clock_ns() + LONGEST_HOOKS;
    }
    if (!can_wait || Py_AddPendingCall(wake_after_fork, NULL) < 0)
        wake_all(NULL);
    Py_RETURN_NONE;
}

static PyObject *fork_child(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    child.forks = sonde_forks;
    if (child.begin != NULL) {
        sonde_writers_wait(child.begin);
        /* Without the thread, the first row begins the recording. */
        (void)sonde_later(child.begin, child.delay_ns);
    }
    Py_RETURN_NONE;
}

static PyObject *forks(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromUnsignedLong(sonde_forks);
}

static PyObject *forked_ns(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromLongLong(child.forks == sonde_forks ? sonde_fork_ns : 0);
}

static PyObject *fork_settled(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    child.settled = sonde_forks;
    Py_RETURN_NONE;
}

static int has_exception(void)
{
    PyObject *type, *value, *traceback;
    PyErr_GetExcInfo(&type, &value, &traceback);
    int has = value != NULL && value != Py_None;
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return has;
}

/* Most children have never used what they inherited. Leaving it in Python would cost them more than
 * all else that we do there. One that fails is worth a recording, however short its life was. */
static PyObject *end_child(PyObject *at_exit, PyObject *Py_UNUSED(none))
{
    if (child.forks == sonde_forks && child.settled != sonde_forks && !has_exception() &&
        sonde_later_leave())
        Py_RETURN_NONE;
    return PyObject_CallNoArgs(at_exit);
}

static PyMethodDef end_child_method = {"end_child", end_child, METH_NOARGS, NULL};

static PyObject *child_end(PyObject *Py_UNUSED(module), PyObject *at_exit)
{
    return PyCFunction_New(&end_child_method, at_exit);
}

/* ---- what a child may not destroy ---------------------------------------------------- */

static PyObject *fork_hold(PyObject *Py_UNUSED(module), PyObject *object)
{
    Py_INCREF(object);
    Py_RETURN_NONE;
}

static PyObject *fork_let_go(PyObject *Py_UNUSED(module), PyObject *object)
{
    Py_DECREF(object);
    Py_RETURN_NONE;
}

PyMethodDef sonde_fork_methods[] = {
    {"follow_forks", follow_forks, METH_VARARGS,
     "follow_forks(begin, delay_ns): have forked children call `begin` at their first row or after\n"
     "this delay; None: never."},
    {"fork_after_import", fork_after_import, METH_VARARGS,
     "fork_after_import(module, call): call this before the next fork after the\n"
     "import, until it returns something else than False."},
    {"fork_rest", fork_rest, METH_NOARGS, "Before a fork: stop the native threads."},
    {"fork_wake", fork_wake, METH_NOARGS, "After a fork, in the parent: let the native threads go on."},
    {"fork_child", fork_child, METH_NOARGS, "After a fork, in the child: wait until it is to be recorded."},
    {"fork_settled", fork_settled, METH_NOARGS, "Note that this process has left what it inherited."},
    {"child_end", child_end, METH_O,
     "child_end(at_exit): return a function for the end of a multiprocessing child, which makes this\n"
     "call unless the child ends in order and has never used what it inherited."},
    {"fork_hold", fork_hold, METH_O,
     "fork_hold(object): keep this until fork_let_go(). A forked child, which never calls that, never destroys its copy."},
    {"fork_let_go", fork_let_go, METH_O, "fork_let_go(object): undo fork_hold(), in the process that called it."},
    {"forks", forks, METH_NOARGS, "Return how many forks lie between this process and the one that loaded the core."},
    {"forked_ns", forked_ns, METH_NOARGS,
     "Return when this process was forked; 0 if it was not, or if Python did not know of the fork."},
    {NULL, NULL, 0, NULL},
};
