/* The thread that reads Python objects for the sampler. */
#define _GNU_SOURCE 1
#include "stacks/helper_thread.h"
#include "kernel/filter.h"
#include "kernel/fork.h"
#include "kernel/thread.h"

#include <errno.h>
#include <sys/prctl.h>
#include <unistd.h>

#define JOIN_MS 2000

SONDE_CHANGED_IN_CHILD static struct {
    pthread_t thread;
    int is_made;      /* made and not joined */
    uint32_t running; /* atomic */
    PyObject *inspect;
    int wants;
    uint32_t *tid;
} helper;

static void forget_in_child(void)
{
    /* In a forked child the thread does not exist; there is nothing to join. */
    helper.is_made = 0;
    helper.running = 0;
}

SONDE_IN_CHILD(forget_in_child)

static void *help(void *Py_UNUSED(arg))
{
    if (!sonde_had_later_filter())
        prctl(PR_SET_NAME, "sonde-help", 0, 0, 0);
    sonde_store_relaxed(helper.tid, (uint32_t)sonde_find_tid());
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *result = PyObject_CallFunction(helper.inspect, "i", helper.wants);
    Py_XDECREF(result);
    PyErr_Clear(); /* inspect() catches its own exceptions; nobody can handle a MemoryError, say */
    PyGILState_Release(gil);
    /* Release: whoever sees that it has ended may give it other work. */
    sonde_store_release(&helper.running, 0);
    return NULL;
}

int sonde_helper_ask(PyObject *inspect, int wants, uint32_t *tid)
{
    /* Acquire: the last call is over before its arguments are replaced. */
    if (sonde_load_acquire(&helper.running))
        return 0;
    if (helper.is_made)
        pthread_join(helper.thread, NULL); /* it has ended, or is about to */
    helper.inspect = inspect;
    helper.wants = wants;
    helper.tid = tid;
    helper.running = 1;
    helper.is_made = sonde_thread_start(help, NULL, &helper.thread) == 0;
    if (!helper.is_made)
        helper.running = 0;
    return helper.is_made;
}

int sonde_helper_join(void)
{
    if (!helper.is_made || pthread_equal(helper.thread, pthread_self()))
        return 0;
    helper.is_made = 0;
    pthread_t thread = helper.thread;
    int left_ms = JOIN_MS;
    /* The helper may be waiting for the GIL. */
    Py_BEGIN_ALLOW_THREADS
    for (; sonde_load_acquire(&helper.running) && left_ms > 0; left_ms--)
        usleep(1000);
    if (left_ms > 0)
        pthread_join(thread, NULL);
    else
        pthread_detach(thread); /* the program must not wait for whatever the helper is stuck in */
    Py_END_ALLOW_THREADS
    return left_ms > 0 ? 0 : -ETIMEDOUT;
}
