/* Calls that the main thread makes after a delay or as soon as it can: a forked child begins its
 * recording with one. */
#include "binding/binding.h"
#include "kernel/fork.h"
#include "kernel/thread.h"

#include <unistd.h>

/* One call at a time. */
static struct {
    pthread_t thread;
    int running;    /* under the GIL: a thread was made and not joined */
    uint32_t leave; /* atomic, and what the thread sleeps on */
    int64_t delay_ns;
    PyObject *call; /* NULL once the call was made or given up */
} late;

static void forget_in_child(void)
{
    /* In a forked child the thread does not exist, so there is nothing to join. */
    late.running = 0;
}

SONDE_IN_CHILD(forget_in_child)

static int run_late(void *Py_UNUSED(arg))
{
    PyObject *call = late.call;
    late.call = NULL;
    if (call == NULL)
        return 0;
    PyObject *result = PyObject_CallNoArgs(call);
    Py_DECREF(call);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static void *wait_and_queue(void *Py_UNUSED(arg))
{
    int64_t end_ns = sonde_clock_ns() + late.delay_ns, left_ns;
    while (!sonde_load_acquire(&late.leave) && (left_ns = end_ns - sonde_clock_ns()) > 0)
        sonde_wait(&late.leave, 0, left_ns);
    /* If the queue is full the call is not made; all that is lost is a session
     * that no row has asked for yet. */
    if (!sonde_load_acquire(&late.leave) && Py_AddPendingCall(run_late, NULL) == 0) {
        PyGILState_STATE gil = PyGILState_Ensure(); /* see nudge() in native_thread.c */
        PyGILState_Release(gil);
    }
    return NULL;
}

/* Give the call up. Needed before the interpreter ends: the thread must not touch it afterwards. */
static PyObject *later_cancel(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    if (late.running) {
        late.running = 0;
        sonde_store_release(&late.leave, 1);
        sonde_wake(&late.leave);
        pthread_t thread = late.thread;
        Py_BEGIN_ALLOW_THREADS
        pthread_join(thread, NULL);
        Py_END_ALLOW_THREADS
    }
    Py_CLEAR(late.call);
    Py_RETURN_NONE;
}

static PyObject *later(PyObject *module, PyObject *args)
{
    PyObject *call;
    long long delay_ns;
    if (!PyArg_ParseTuple(args, "OL", &call, &delay_ns))
        return NULL;
    Py_XDECREF(later_cancel(module, NULL));
    late.call = Py_NewRef(call);
    late.delay_ns = delay_ns;
    late.leave = 0;
    int status = sonde_thread_start(wait_and_queue, NULL, &late.thread);
    if (status < 0) {
        Py_CLEAR(late.call);
        return sonde_raise(status, "thread");
    }
    late.running = 1;
    Py_RETURN_NONE;
}

static int run_soon(void *call)
{
    PyObject *result = PyObject_CallNoArgs(call);
    Py_DECREF((PyObject *)call);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static PyObject *soon(PyObject *Py_UNUSED(module), PyObject *call)
{
    /* If we are in another thread, make the call here: the main thread may stay in C code for
     * long. */
    if (sonde_find_tid() != getpid())
        return PyObject_CallNoArgs(call);
    Py_INCREF(call);
    if (Py_AddPendingCall(run_soon, call) < 0) {
        Py_DECREF(call);
        return PyObject_CallNoArgs(call); /* the queue is full */
    }
    Py_RETURN_NONE;
}

PyMethodDef sonde_delayed_call_methods[] = {
    {"later", later, METH_VARARGS,
     "later(call, delay_ns): call it in the main thread after this delay; one call at a time."},
    {"later_cancel", later_cancel, METH_NOARGS, "Give up the call that later() was given."},
    {"soon", soon, METH_O, "soon(call): call it in the main thread, at its next safe point."},
    {NULL, NULL, 0, NULL},
};
