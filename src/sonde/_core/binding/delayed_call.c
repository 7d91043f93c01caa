/* Calls that the main thread makes after a delay: a child begins its recording with one. */
#include "binding/binding.h"
#include "kernel/fork.h"
#include "kernel/thread.h"

/* A main thread that has not made the call by then is waiting for something, perhaps for ever. */
#define TAKE_NS 20000000

enum { WAITING, GIVEN_UP, TAKEN };

/* One call at a time. */
SONDE_CHANGED_IN_CHILD static struct {
    pthread_t thread;
    int running;    /* under the GIL: a thread was made and not joined */
    uint32_t state; /* atomic, and what the thread sleeps on */
    uint32_t tid;   /* atomic: of our thread while it makes the call itself */
    int64_t due_ns;
    PyObject *call; /* NULL once the call was made or given up; whoever swaps it out owns it */
} late;

static void forget_in_child(void)
{
    /* In a forked child the thread does not exist, so there is nothing to join. */
    late.running = 0;
    late.tid = 0;
}

SONDE_IN_CHILD(forget_in_child)

uint32_t sonde_later_tid(void) { return sonde_load_relaxed(&late.tid); }

static void set_state(uint32_t state)
{
    sonde_store_release(&late.state, state);
    sonde_wake(&late.state);
}

static int run_late(void *Py_UNUSED(arg))
{
    PyObject *call = sonde_swap_acquire(&late.call, NULL);
    if (call == NULL)
        return 0;
    set_state(TAKEN);
    PyObject *result = PyObject_CallNoArgs(call);
    Py_DECREF(call);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static void replace_call(PyObject *call) { Py_XDECREF(sonde_swap_acquire(&late.call, call)); }

/* Sleep until then, or until the call was made or given up. Returns whether it is still to be made. */
static int wait_until(int64_t end_ns)
{
    int64_t left_ns;
    while (sonde_load_acquire(&late.state) == WAITING && (left_ns = end_ns - sonde_clock_ns()) > 0)
        sonde_wait(&late.state, WAITING, left_ns);
    return sonde_load_acquire(&late.state) == WAITING;
}

static void *wait_and_call(void *Py_UNUSED(arg))
{
    if (!wait_until(late.due_ns))
        return NULL;
    if (Py_AddPendingCall(run_late, NULL) == 0) {
        PyGILState_STATE gil = PyGILState_Ensure(); /* see nudge() in native_thread.c */
        PyGILState_Release(gil);
        if (!wait_until(sonde_clock_ns() + TAKE_NS))
            return NULL;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    sonde_store_relaxed(&late.tid, (uint32_t)sonde_find_tid());
    if (run_late(NULL) < 0)
        PyErr_Clear(); /* nobody could handle it */
    sonde_store_relaxed(&late.tid, 0);
    PyGILState_Release(gil);
    return NULL;
}

/* End the thread and wait for it, even if it is making the call. */
static void end_thread(void)
{
    if (!late.running || pthread_equal(late.thread, pthread_self()))
        return;
    late.running = 0;
    set_state(GIVEN_UP);
    pthread_t thread = late.thread;
    Py_BEGIN_ALLOW_THREADS
    pthread_join(thread, NULL);
    Py_END_ALLOW_THREADS
}

static int begin_thread(void)
{
    late.state = WAITING;
    int status = sonde_thread_start(wait_and_call, NULL, &late.thread);
    late.running = status == 0;
    return status;
}

int sonde_later(PyObject *call, int64_t delay_ns)
{
    end_thread();
    replace_call(Py_NewRef(call));
    late.due_ns = sonde_clock_ns() + delay_ns;
    int status = begin_thread();
    if (status < 0)
        replace_call(NULL);
    return status;
}

void sonde_later_rest(void) { end_thread(); }

void sonde_later_wake(void)
{
    if (late.call != NULL && !late.running)
        (void)begin_thread();
}

/* Give the call up. Needed before the interpreter ends: the thread must not touch it afterwards. */
static PyObject *later_cancel(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    replace_call(NULL);
    if (late.running && sonde_later_tid()) {
        /* It is making the call, and may be waiting for a lock that our caller holds. */
        late.running = 0;
        pthread_detach(late.thread);
    }
    end_thread();
    Py_RETURN_NONE;
}

static PyObject *later_finish(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    if (!sonde_later_tid())
        replace_call(NULL);
    end_thread();
    Py_RETURN_NONE;
}

/* The thread is left out of samples, as our own is. */
static PyObject *later_by(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned tid;
    if (!PyArg_ParseTuple(args, "I", &tid))
        return NULL;
    sonde_store_relaxed(&late.tid, tid);
    Py_RETURN_NONE;
}

int sonde_later_leave(void)
{
    if (sonde_later_tid())
        return 0;
    replace_call(NULL);
    return 1;
}

PyMethodDef sonde_delayed_call_methods[] = {
    {"later_by", later_by, METH_VARARGS,
     "later_by(tid): note that this thread of ours begins a recording after a delay; 0: it has begun."},
    {"later_cancel", later_cancel, METH_NOARGS, "Give up the call that is to be made after a delay."},
    {"later_finish", later_finish, METH_NOARGS,
     "Give it up, unless it is being made: then wait until it is. Not with a lock that it needs."},
    {NULL, NULL, 0, NULL},
};
