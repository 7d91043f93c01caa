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
#define REST_MS 200
#define STEP_US 1000 /* of a pause, after which it may end early */

SONDE_CHANGED_IN_CHILD static struct {
    pthread_t thread;
    int is_made;      /* made and not joined */
    int is_hurried;   /* atomic: somebody waits for its end */
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
    SONDE_RESET(helper.is_hurried, 0);
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

/* Wait until it has ended. Returns whether it has. Needs the GIL. */
static int join(int most_ms)
{
    pthread_t thread = helper.thread;
    sonde_store_relaxed(&helper.is_hurried, 1);
    /* The helper may be waiting for the GIL. */
    Py_BEGIN_ALLOW_THREADS
    for (; sonde_load_acquire(&helper.running) && most_ms > 0; most_ms--)
        usleep(1000);
    if (most_ms > 0)
        pthread_join(thread, NULL);
    Py_END_ALLOW_THREADS
    sonde_store_relaxed(&helper.is_hurried, 0);
    return most_ms > 0;
}

static int can_join(void) { return helper.is_made && !pthread_equal(helper.thread, pthread_self()); }

int sonde_helper_join(void)
{
    if (!can_join())
        return 0;
    helper.is_made = 0;
    if (join(JOIN_MS))
        return 0;
    pthread_detach(helper.thread); /* the program must not wait for whatever the helper is stuck in */
    return -ETIMEDOUT;
}

/* ---- forks ------------------------------------------------------------------------------- */

/* Python would warn of it. The native thread, which asks for it, rests already. */
static void rest(void)
{
    if (!can_join())
        return;
    helper.is_made = 0; /* first: join() lets other threads run, which may fork as well */
    helper.is_made = !join(REST_MS);
}

static void wake(void) {}

void sonde_helper_follow_forks(void) { sonde_at_fork(rest, wake); }

void sonde_helper_pause(int us)
{
    Py_BEGIN_ALLOW_THREADS
    for (; us > 0 && !sonde_load_relaxed(&helper.is_hurried); us -= STEP_US)
        usleep(STEP_US);
    Py_END_ALLOW_THREADS
}
