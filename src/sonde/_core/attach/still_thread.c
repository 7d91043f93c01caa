/* look_at(): stop one thread of another process, look at it, and let it go on.
 *
 * Nothing is written into the process. The other threads run on, and the thread is stopped only
 * while the given function runs. However the tool ends, the kernel lets the thread go on: it was
 * seized, so no signal was sent to it that could stay behind.
 */
#define _GNU_SOURCE 1
#include "attach/attach.h"
#include "attach/ptrace.h"

#include <errno.h>
#include <signal.h>

static PyObject *fail(int status)
{
    errno = -status;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *look(sonde_ptraced *traced, PyObject *function)
{
    int status = sonde_ptrace_place(traced);
    if (status == 0)
        status = sonde_ptrace_stop(traced);
    if (status < 0)
        return fail(status);
    /* What it returns, or an exception, is handed on only after the thread is free. */
    PyObject *found = PyObject_CallFunction(function, "y#", (const char *)&traced->was.general,
                                            (Py_ssize_t)sizeof traced->was.general);
    /* It may have been killed meanwhile; then there is nothing to let go. */
    sonde_ptrace_release(traced);
    return found;
}

static PyObject *look_at(PyObject *Py_UNUSED(module), PyObject *args)
{
    static sonde_ptraced traced; /* large; `is_busy` says whether it is in use */
    static int is_busy;
    pid_t pid, tid;
    PyObject *function;
    if (!PyArg_ParseTuple(args, "iiO", &pid, &tid, &function))
        return NULL;
    if (is_busy)
        return fail(-EBUSY);
    is_busy = 1;
    traced.pid = pid;
    traced.tid = tid;
    sigset_t all, before;
    sigfillset(&all);
    /* Whatever would end the tool, except SIGKILL, waits until the thread is free. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    PyObject *found = look(&traced, function);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    is_busy = 0;
    return found;
}

PyMethodDef sonde_still_thread_methods[] = {
    {"look_at", look_at, METH_VARARGS,
     "look_at(pid, tid, function): stop a thread of another process, call function(registers), and let\n"
     "the thread go on. Returns what the function returned."},
    {NULL, NULL, 0, NULL},
};
