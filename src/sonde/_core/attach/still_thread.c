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
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

static PyObject *fail(int status)
{
    errno = -status;
    return PyErr_SetFromErrno(PyExc_OSError);
}

typedef struct {
    sonde_ptraced traced;
    pid_t tool;
    int stands[2], go_on[2]; /* pipes: the tracer says the first word, the tool the second */
} errand;

static int stop(sonde_ptraced *traced)
{
    int status = sonde_ptrace_place(traced);
    return status < 0 ? status : sonde_ptrace_stop(traced);
}

/* Stop the thread until the tool has looked at it, or is dead. */
static int stop_in_tracer(void *of)
{
    errand *self = of;
    char word = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != self->tool)
        return -ESRCH;
    int status = stop(&self->traced);
    if (status < 0)
        return status;
    /* While the tool runs as well, we only wait: both have the same errno. */
    if (write(self->stands[1], &word, 1) == 1)
        (void)!read(self->go_on[0], &word, 1);
    /* It may have been killed meanwhile; then there is nothing to let go. */
    sonde_ptrace_release(&self->traced);
    return 0;
}

static PyObject *call(PyObject *function, const sonde_ptraced *traced)
{
    return PyObject_CallFunction(function, "y#", (const char *)&traced->was.general,
                                 (Py_ssize_t)sizeof traced->was.general);
}

/* Return what the function returned, after the thread is free. NULL if the thread could not be
 * stopped: `*status` says why, and there is no exception. Closes the end for the first word. */
static PyObject *look_through_tracer(errand *self, PyObject *function, int *status)
{
    sonde_tracer tracer;
    PyObject *found = NULL;
    char word = 0;
    *status = sonde_tracer_start(&tracer, stop_in_tracer, self);
    if (*status < 0) {
        close(self->stands[1]);
        return NULL;
    }
    close(self->stands[1]); /* so that we notice if the tracer ends without a word */
    if (read(self->stands[0], &word, 1) == 1) {
        found = call(function, &self->traced);
        (void)!write(self->go_on[1], &word, 1);
    }
    *status = sonde_tracer_wait(&tracer);
    return found;
}

/* As above, where a process may trace its children, and nobody else may. */
static PyObject *look_ourselves(errand *self, PyObject *function, int *status)
{
    *status = stop(&self->traced);
    if (*status < 0)
        return NULL;
    PyObject *found = call(function, &self->traced);
    sonde_ptrace_release(&self->traced);
    return found;
}

static PyObject *look(errand *self, PyObject *function)
{
    int status;
    if (pipe2(self->stands, O_CLOEXEC) < 0)
        return fail(-errno);
    if (pipe2(self->go_on, O_CLOEXEC) < 0) {
        status = -errno;
        close(self->stands[0]);
        close(self->stands[1]);
        return fail(status);
    }
    PyObject *found = look_through_tracer(self, function, &status);
    close(self->stands[0]);
    close(self->go_on[0]);
    close(self->go_on[1]);
    if (status == -EPERM)
        found = look_ourselves(self, function, &status);
    return found == NULL && status < 0 ? fail(status) : found;
}

static PyObject *look_at(PyObject *Py_UNUSED(module), PyObject *args)
{
    static errand self; /* large; `is_busy` says whether it is in use */
    static int is_busy;
    pid_t pid, tid;
    PyObject *function;
    if (!PyArg_ParseTuple(args, "iiO", &pid, &tid, &function))
        return NULL;
    if (is_busy)
        return fail(-EBUSY);
    is_busy = 1;
    self.traced.pid = pid;
    self.traced.tid = tid;
    self.tool = getpid();
    sigset_t all, before;
    sigfillset(&all);
    /* Whatever would end the tool, except SIGKILL, waits until the thread is free. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    PyObject *found = look(&self, function);
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
