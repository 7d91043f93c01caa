/* sonde._delay: waiting in a program that a recorded one has started, until it is to be recorded.
 *
 * This is a library of its own, which the hook (sonde.pth) loads by its path. Most such programs end
 * soon: to import the package and to load the core would take a tenth of the time of `python -c pass`.
 * Nothing of sonde but this is loaded until the delay is over, or until the program forks, uses sonde
 * or ends with an exception that nobody caught. job/autostart.py does the rest.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "format/ordering.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DELAY_NS 100000000 /* most programs that others start have ended by then */
/* A main thread that has not made the call by then is waiting for something, perhaps for ever. */
#define TAKE_NS 20000000
#define STACK_BYTES (256 * 1024)
#define MOST_TRIES 50 /* so that a broken installation costs nothing for long */

enum { WAITING, DUE, LEFT };

static struct {
    pthread_t thread;
    int running;      /* under the GIL: a thread was made and neither joined nor detached, … */
    pid_t pid;        /* … in this process: one that was forked in C has no such thread */
    int tries;        /* under the GIL: how often beginning was put off */
    int64_t due_ns;   /* written before the thread starts */
    uint32_t state;   /* atomic, and what the thread sleeps on */
    uint32_t tid;     /* atomic: of our thread while it makes the call itself */
    int64_t since_ns; /* atomic: since when we wait; whoever swaps it out begins; 0: we do not wait */
} now;

static int64_t read_clock(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* ---- whether ---------------------------------------------------------------------- */

static const char *read_variable(const char *name)
{
    const char *value = getenv(name);
    return value == NULL ? "" : value;
}

/* Is NAME=VALUE, which ends at `end`, still so? A variable that is missing is empty. */
static int is_same(const char *pair, const char *end)
{
    char name[64];
    const char *value = memchr(pair, '=', (size_t)(end - pair));
    if (value == NULL || (size_t)(value - pair) >= sizeof name)
        return 0;
    memcpy(name, pair, (size_t)(value - pair));
    name[value - pair] = 0;
    const char *is = read_variable(name);
    size_t length = (size_t)(end - ++value);
    return strlen(is) == length && memcmp(is, value, length) == 0;
}

/* Has a recorded process started this one as one of its helpers? What it wrote down in
 * environ.follow_children() is then still so. What `sonde run` starts does not wait. */
static int is_child(void)
{
    if (strcmp(read_variable("SONDE"), "1") != 0 || getenv("SONDE_ONLY") != NULL ||
        getenv("SONDE_HELD") != NULL)
        return 0;
    char pid[24];
    const char *kept = read_variable("SONDE_PARENT"), *end = strchrnul(kept, ' ');
    int length = snprintf(pid, sizeof pid, "%ld", (long)getpid());
    if (end == kept || (end - kept == length && memcmp(kept, pid, (size_t)length) == 0))
        return 0;
    while (*end != 0) {
        const char *pair = end + 1;
        end = strchrnul(pair, ' ');
        if (!is_same(pair, end))
            return 0;
    }
    return 1;
}

static PyObject *may_wait(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(is_child());
}

/* ---- the thread --------------------------------------------------------------------- */

static void set_state(uint32_t state)
{
    /* Release: whoever sees the state sees what was done before. */
    sonde_store_release(&now.state, state);
    syscall(SYS_futex, &now.state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Sleep until then, or until the state is another one. Returns whether it is the same. */
static int sleep_until(uint32_t state, int64_t end_ns)
{
    int64_t left_ns;
    while (sonde_load_acquire(&now.state) == state && (left_ns = end_ns - read_clock()) > 0) {
        struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
        syscall(SYS_futex, &now.state, FUTEX_WAIT_PRIVATE, state, &left, NULL, 0);
    }
    return sonde_load_acquire(&now.state) == state;
}

static int begin_now(const char *function);

static int run_pending(void *Py_UNUSED(arg))
{
    set_state(LEFT);
    return begin_now("begin");
}

static void *wait_and_begin(void *Py_UNUSED(arg))
{
    uint32_t waiting = WAITING;
    (void)sleep_until(WAITING, now.due_ns);
    /* From here on whoever leaves has to wait for us; before this we touch nothing of Python's.
     * Acquire: it was not left before. */
    if (!sonde_cas_acquire(&now.state, &waiting, DUE))
        return NULL;
    if (Py_AddPendingCall(run_pending, NULL) == 0) {
        PyGILState_STATE gil = PyGILState_Ensure(); /* see nudge() in native_thread.c */
        PyGILState_Release(gil);
        if (!sleep_until(DUE, read_clock() + TAKE_NS))
            return NULL;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    sonde_store_relaxed(&now.tid, (uint32_t)syscall(SYS_gettid));
    if (begin_now("begin") < 0)
        PyErr_Clear(); /* nobody could handle it */
    sonde_store_relaxed(&now.tid, 0);
    PyGILState_Release(gil);
    return NULL;
}

static int is_running(void) { return now.running && now.pid == getpid(); }

/* Wait from now on. Returns whether that is possible. */
static int start_thread(void)
{
    pthread_attr_t attr;
    sigset_t all, before;
    if (is_running())
        pthread_detach(now.thread); /* it has done its part, or is the caller */
    now.pid = getpid();
    now.due_ns = read_clock() + DELAY_NS;
    now.state = WAITING;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all); /* signals belong to the program's own threads */
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    now.running = pthread_create(&now.thread, &attr, wait_and_begin, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return now.running;
}

/* End the thread and wait for it, even if it is making the call. */
static void end_thread(void)
{
    if (!is_running() || pthread_equal(now.thread, pthread_self()))
        return;
    now.running = 0;
    set_state(LEFT);
    pthread_t thread = now.thread;
    Py_BEGIN_ALLOW_THREADS
    pthread_join(thread, NULL);
    Py_END_ALLOW_THREADS
}

/* ---- beginning ------------------------------------------------------------------------ */

static PyObject *call_autostart(const char *function, int64_t since_ns)
{
    PyObject *autostart = PyImport_ImportModule("sonde.job.autostart");
    if (autostart == NULL)
        return NULL;
    PyObject *result = PyObject_CallMethod(autostart, function, "LI", (long long)since_ns,
                                           (unsigned)sonde_load_relaxed(&now.tid));
    Py_DECREF(autostart);
    return result;
}

/* Begin if this process still waits; with the GIL. Returns 0, or -1 with an exception that is the
 * program's. Signals are held back: a handler that raises here would end our work halfway. */
static int begin_now(const char *function)
{
    sigset_t all, before;
    int64_t since_ns = sonde_swap_acquire(&now.since_ns, 0); /* acquire: nobody else begins */
    if (since_ns == 0)
        return 0;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* the guard of mapped files needs it */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    PyObject *result = call_autostart(function, since_ns);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    int is_ours = result == NULL && PyErr_ExceptionMatches(PyExc_Exception);
    if (is_ours)
        PyErr_Clear();
    /* False, or an error: this call interrupts an import of what it needs. */
    if ((is_ours || result == Py_False) && ++now.tries < MOST_TRIES) {
        sonde_store_release(&now.since_ns, since_ns); /* release: it has not begun */
        (void)start_thread();
    }
    int status = result == NULL && !is_ours ? -1 : 0;
    Py_XDECREF(result);
    return status;
}

static PyObject *begin(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    if (begin_now("begin") < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Begin, so that the child is followed as the child of any recorded process. */
static PyObject *before_fork(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    int status = begin_now("begin_before_fork");
    end_thread(); /* Python 3.12 warns of a fork in a process with more than one */
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Leave before the interpreter ends. A thread that still sleeps touches nothing of Python's any more,
 * so nobody waits for it: that takes longer than all else that we do in a short program. */
static PyObject *at_exit(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    uint32_t waiting = WAITING;
    PyObject *failure = PySys_GetObject("last_value");
    int has_failed = failure != NULL && failure != Py_None, status = 0;
    now.tries = MOST_TRIES; /* nothing is put off any more */
    if (has_failed)
        status = begin_now("record_failure");
    sonde_store_relaxed(&now.since_ns, 0); /* one that is beginning has taken it */
    /* Acquire: the thread is not due yet, and will not be. */
    if (is_running() && sonde_cas_acquire(&now.state, &waiting, LEFT)) {
        now.running = 0;
        pthread_detach(now.thread);
    }
    end_thread();
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- the module ------------------------------------------------------------------------ */

/* Call module.function(call), or with the call as the argument of this name. */
static int pass_on(const char *module, const char *function, const char *name, PyObject *call)
{
    PyObject *from = PyImport_ImportModule(module);
    PyObject *taker = from == NULL ? NULL : PyObject_GetAttrString(from, function);
    PyObject *args = name != NULL ? PyTuple_New(0) : call == NULL ? NULL : PyTuple_Pack(1, call);
    PyObject *named = name == NULL || call == NULL ? NULL : Py_BuildValue("{sO}", name, call);
    PyObject *result = taker == NULL || args == NULL || call == NULL || (name != NULL && named == NULL)
                           ? NULL
                           : PyObject_Call(taker, args, named);
    Py_XDECREF(from);
    Py_XDECREF(taker);
    Py_XDECREF(args);
    Py_XDECREF(named);
    Py_XDECREF(call);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static PyObject *wait_here(PyObject *module, PyObject *Py_UNUSED(none))
{
    if (!is_child())
        Py_RETURN_FALSE;
    if (now.since_ns != 0)
        Py_RETURN_TRUE;
    if (pass_on("atexit", "register", NULL, PyObject_GetAttrString(module, "at_exit")) < 0 ||
        pass_on("posix", "register_at_fork", "before", PyObject_GetAttrString(module, "before_fork")) < 0)
        return NULL;
    now.since_ns = read_clock();
    (void)start_thread(); /* without it, the program is recorded when it uses sonde */
    Py_RETURN_TRUE;
}

static PyMethodDef methods[] = {
    {"may_wait", may_wait, METH_NOARGS, "Tell whether a recorded process has started this one as a helper."},
    {"wait", wait_here, METH_NOARGS,
     "Wait with the recording if this process may; return whether. Call it once."},
    {"begin", begin, METH_NOARGS, "Begin now if this process waits."},
    {"before_fork", before_fork, METH_NOARGS, "Begin before a fork."},
    {"at_exit", at_exit, METH_NOARGS, "Leave, and record how the program failed."},
    {NULL, NULL, 0, NULL},
};

static int check_interpreter(PyObject *Py_UNUSED(module))
{
    if (PyInterpreterState_Get() == PyInterpreterState_Main())
        return 0;
    PyErr_SetString(PyExc_ImportError, "sonde._delay works in the main interpreter only");
    return -1;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, check_interpreter},
#ifdef Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "sonde._delay",
    .m_doc = "Waits, in a program that a recorded one has started, until it is to be recorded.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__delay(void) { return PyModuleDef_Init(&module_def); }
