/* NativeThread: the one native thread in the job.
 *
 * It never takes the GIL, so it works while a C call holds it and while the program hangs.
 * Whatever needs Python is left to the main thread's next safe point (Py_AddPendingCall).
 */
#include "binding/binding.h"
#include "binding/nudge.h"
#include "kernel/filter.h"
#include "kernel/fork.h"
#include "kernel/map_guard.h"
#include "kernel/thread.h"
#include "kernel/upkeep.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum { END = 1, PARK = 2 };

/* How late we see a request whose sender died before waking us. */
#define CHECK_NS 1000000000
/* How long a queued call may wait before a thread makes Python see it. */
#define NUDGE_NS 20000000

typedef struct NativeThreadObject {
    PyObject_HEAD
    PyObject *page_map;
    PyObject *obey; /* called in the main thread when something was asked for */
    sonde_control *page;
    pthread_t thread;
    int running;       /* under the GIL: a thread was made and not joined */
    uint32_t forks;    /* sonde_forks then: a parent's thread does not exist here */
    uint32_t leave;    /* atomic, as are the next two: END or PARK */
    uint32_t pending;  /* obey is queued, or being called */
    uint32_t parked;   /* the thread sleeps for good */
    int is_obeying;    /* under the GIL: it is being called */
    struct NativeThreadObject *next; /* of `threads` */
    sonde_upkeep upkeep; /* its strings are copies of our own */
    int64_t queued_ns; /* when obey was queued; 0: Python was nudged since then */
    sonde_nudge nudge;
} NativeThreadObject;

static sonde_exclusion list = SONDE_EXCLUSION; /* of what is said to be under the GIL */
SONDE_CHANGED_IN_CHILD static NativeThreadObject *threads; /* the running ones */

/* Taken by a native thread for each turn, and by a fork. A semaphore, because a mutex must be
 * released by the thread that took it. */
SONDE_CHANGED_IN_CHILD static sem_t turns;

SONDE_CHANGED_IN_CHILD static int is_held; /* under the GIL: a fork has taken the turns */

static void take_turns(void)
{
    while (sem_wait(&turns) < 0 && errno == EINTR)
        ;
}

__attribute__((constructor)) static void make_turns(void) { sem_init(&turns, 0, 1); }

static void forget_in_child(void)
{
    make_turns();
    is_held = 0;
    threads = NULL;
}

SONDE_IN_CHILD(forget_in_child)

void sonde_native_threads_ring(void)
{
    SONDE_EXCLUDE_BEGIN(&list)
    for (NativeThreadObject *thread = threads; thread != NULL; thread = thread->next)
        sonde_control_ring(thread->page);
    SONDE_EXCLUDE_END
}

static int is_running(const NativeThreadObject *self)
{
    return self->running && self->forks == sonde_forks;
}

static const sonde_native_work *work;

void sonde_native_thread_serve(const sonde_native_work *given)
{
    /* Relaxed: it points to constants, so nothing else has to be ordered. */
    sonde_store_relaxed(&work, given);
}

static int64_t take_turn(sonde_control *page)
{
    const sonde_native_work *now = sonde_load_relaxed(&work);
    return now == NULL ? INT64_MAX : now->take_turn(page);
}

static void rest(void)
{
    const sonde_native_work *now = sonde_load_relaxed(&work);
    if (now != NULL)
        now->rest();
}

static PyObject *call_obey(NativeThreadObject *self)
{
    /* Acquire, as part of the exchange: the values are read after the bits. */
    uint32_t changed = sonde_swap_acquire(&self->upkeep.unreported, 0);
    PyObject *start = changed & SONDE_START_CHANGED
                          ? PyLong_FromLong(sonde_load_relaxed(&self->upkeep.start_status))
                          : Py_NewRef(Py_None);
    PyObject *state = changed & SONDE_SIGNAL_CHANGED
                          ? PyLong_FromLong(sonde_load_relaxed(&self->upkeep.signal_state))
                          : Py_NewRef(Py_None);
    PyObject *result = start == NULL || state == NULL
                           ? NULL
                           : PyObject_CallFunctionObjArgs(self->obey, start, state, NULL);
    Py_XDECREF(start);
    Py_XDECREF(state);
    return result;
}

/* Something that a source has to do in the main thread from time to time. */
static struct {
    int (*waits)(void); /* atomic, like the other */
    void (*run)(void);
} errand;

void sonde_native_errand(int (*waits)(void), void (*run)(void))
{
    sonde_store_relaxed(&errand.run, run);
    sonde_store_release(&errand.waits, waits);
}

static int errand_waits(void)
{
    int (*waits)(void) = sonde_load_acquire(&errand.waits);
    return waits != NULL && waits();
}

static int run_obey(void *arg)
{
    NativeThreadObject *self = arg;
    int status = 0;
    Py_INCREF(self); /* obey may stop and drop this object */
    if (!sonde_load_acquire(&self->leave)) {
        self->is_obeying = 1;
        if (sonde_load_relaxed(&errand.run) != NULL)
            errand.run();
        PyObject *result = call_obey(self);
        self->is_obeying = 0;
        /* obey catches its own exceptions; any other is the program's, such as a Ctrl-C just now. */
        status = result == NULL ? -1 : 0;
        Py_XDECREF(result);
    }
    /* Lowered only now: 3.11 never gets out of a pending call that switches a profile function on
     * while another pending call waits. What is asked for meanwhile is seen when the page rings
     * again. */
    sonde_store_release(&self->pending, 0);
    if (!sonde_load_acquire(&self->leave))
        sonde_control_ring(self->page);
    Py_DECREF(self);
    return status;
}

static int wants_python(NativeThreadObject *self)
{
    const sonde_control *page = self->page;
    return sonde_load_acquire(&self->upkeep.unreported) || sonde_load_acquire(&page->stop) ||
           sonde_load_acquire(&page->asked) != sonde_load_acquire(&page->obeyed) || errand_waits();
}

/* Make Python see a call that has waited too long. Returns how long to sleep at most. */
static int64_t push_obey(NativeThreadObject *self)
{
    if (!SONDE_NEEDS_NUDGE || !sonde_load_acquire(&self->pending) || self->queued_ns == 0)
        return CHECK_NS;
    if (sonde_clock_ns() - self->queued_ns < NUDGE_NS)
        return NUDGE_NS;
    self->queued_ns = 0; /* once is enough */
    sonde_nudge_begin(&self->nudge);
    return CHECK_NS;
}

static void prepare(void)
{
    if (sonde_has_later_filter())
        return; /* it may forbid all of this, and the thread is soon ended */
    prctl(PR_SET_NAME, "sonde", 0, 0, 0);
    /* Samples are due to the microsecond; by default the kernel wakes us up to 50 us late. */
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    /* On a busy machine we would get to look only when the thread that we want to see sleeps: a
     * function that runs for 0.5 ms after each sleep would hardly ever be seen. */
    sonde_thread_be_prompt();
}

static void *watch(void *arg)
{
    NativeThreadObject *self = arg;
    prepare();
    while (!sonde_load_acquire(&self->leave)) {
        take_turns();
        /* Acquire: the bell is read before what it announces, so a ring after this wakes us. */
        uint32_t bell = sonde_load_acquire(&self->page->bell);
        if (wants_python(self) && !sonde_load_acquire(&self->pending)) {
            sonde_store_release(&self->pending, 1);
            /* If the queue is full, try again next time. */
            if (Py_AddPendingCall(run_obey, self) < 0)
                sonde_store_release(&self->pending, 0);
            self->queued_ns = sonde_clock_ns();
        }
        int64_t nudge_ns = push_obey(self);
        sonde_upkeep_turn(&self->upkeep, self->page);
        if (!sonde_had_later_filter())
            sonde_guard_renew();
        sonde_store_relaxed(&self->page->pages_lost, sonde_guard_lost());
        int64_t due_ns = take_turn(self->page), check_ns = sonde_clock_ns() + nudge_ns;
        sem_post(&turns);
        if (!sonde_load_acquire(&self->leave))
            sonde_wait_until(&self->page->bell, bell, due_ns < check_ns ? due_ns : check_ns);
    }
    rest();
    if (sonde_load_acquire(&self->leave) == PARK)
        sonde_thread_park(&self->parked);
    return NULL;
}

static PyObject *thread_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *map, *obey;
    static char *names[] = {"page", "obey", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O", names, &sonde_MapType, &map, &obey))
        return NULL;
    sonde_control *page = sonde_map_memory(map, 1);
    if (page == NULL)
        return NULL;
    int status = sonde_control_verify(page, ((MapObject *)map)->bytes);
    if (status < 0)
        return sonde_raise(status, "control page");
    NativeThreadObject *self = (NativeThreadObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->page_map = Py_NewRef(map);
    self->obey = Py_NewRef(obey);
    self->page = page;
    return (PyObject *)self;
}

static PyObject *thread_keep(NativeThreadObject *self, PyObject *args)
{
    PyObject *lock, *argv, *snapshot, *envp;
    if (!PyArg_ParseTuple(args, "OO!O!O!", &lock, &PyList_Type, &argv, &PyList_Type, &snapshot,
                          &PyList_Type, &envp))
        return NULL;
    if (is_running(self) || self->upkeep.keeper.envp != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "keep() must be called once, before start()");
        return NULL;
    }
    char ***commands = self->upkeep.keeper.commands;
    commands[SONDE_COLLECTOR] = sonde_strings_copy(argv);
    commands[SONDE_SNAPSHOT] = commands[SONDE_COLLECTOR] == NULL ? NULL : sonde_strings_copy(snapshot);
    self->upkeep.keeper.envp = commands[SONDE_SNAPSHOT] == NULL ? NULL : sonde_strings_copy(envp);
    if (self->upkeep.keeper.envp == NULL)
        return NULL;
    self->upkeep.lock = PyBytes_Check(lock) ? strdup(PyBytes_AS_STRING(lock)) : NULL;
    Py_RETURN_NONE;
}

/* Returns 0 if there is a thread now, or none is wanted any more; otherwise -errno. */
static int begin_thread(NativeThreadObject *self)
{
    if (is_running(self) || sonde_load_acquire(&self->leave))
        return 0;
    int status = sonde_thread_start(watch, self, &self->thread);
    self->running = status == 0;
    self->forks = sonde_forks;
    return status;
}

static PyObject *thread_wake(NativeThreadObject *self, PyObject *Py_UNUSED(none))
{
    int status;
    SONDE_EXCLUDE_BEGIN(&list)
    status = begin_thread(self);
    SONDE_EXCLUDE_END
    if (status < 0)
        return sonde_raise(status, "thread");
    Py_RETURN_NONE;
}

static PyObject *thread_start(NativeThreadObject *self, PyObject *Py_UNUSED(none))
{
    int status = 0;
    SONDE_EXCLUDE_BEGIN(&list)
    if (!is_running(self) && !sonde_load_acquire(&self->leave) && (status = begin_thread(self)) == 0) {
        Py_INCREF(self); /* the thread's reference; stop() gives it back */
        self->next = threads;
        threads = self;
    }
    SONDE_EXCLUDE_END
    if (status < 0)
        return sonde_raise(status, "thread");
    Py_RETURN_NONE;
}

static void unlink_thread(NativeThreadObject *self)
{
    for (NativeThreadObject **at = &threads; *at != NULL; at = &(*at)->next)
        if (*at == self) {
            *at = self->next;
            return;
        }
}

static PyObject *thread_stop(NativeThreadObject *self, PyObject *Py_UNUSED(none))
{
    int was_running;
    /* A thread ends with calls that a filter may forbid, so that one is left asleep then. */
    int parks = sonde_had_later_filter();
    sonde_store_release(&self->leave, parks ? PARK : END);
    SONDE_EXCLUDE_BEGIN(&list)
    was_running = is_running(self);
    self->running = 0;
    if (was_running)
        unlink_thread(self);
    SONDE_EXCLUDE_END
    if (!was_running)
        Py_RETURN_NONE;
    sonde_control_ring(self->page);
    pthread_t thread = self->thread;
    Py_BEGIN_ALLOW_THREADS
    if (parks) {
        sonde_thread_await_parked(&self->parked);
    } else {
        pthread_join(thread, NULL);
        sonde_nudge_join(&self->nudge);
    }
    Py_END_ALLOW_THREADS
    if (parks)
        Py_RETURN_NONE; /* the thread keeps this object */
    sonde_keeper_leave(&self->upkeep.keeper);
    /* obey is still queued: the interpreter holds our address for good, so this object stays. */
    if (!sonde_load_acquire(&self->pending) || self->is_obeying)
        Py_DECREF(self);
    Py_RETURN_NONE;
}

/* End the thread; begin_thread() starts it again. */
static void end_thread(NativeThreadObject *self)
{
    if (!is_running(self))
        return;
    sonde_store_release(&self->leave, END);
    sonde_control_ring(self->page);
    /* The thread needs no GIL, and ends within a millisecond. */
    pthread_join(self->thread, NULL);
    sonde_store_release(&self->leave, 0);
    self->running = 0;
}

static PyObject *thread_rest(NativeThreadObject *self, PyObject *Py_UNUSED(none))
{
    SONDE_EXCLUDE_BEGIN(&list)
    end_thread(self);
    SONDE_EXCLUDE_END
    Py_RETURN_NONE;
}

/* ---- forks ------------------------------------------------------------------------- */

static void rest_all(void)
{
    if (threads == NULL || is_held)
        return;
    if (SONDE_PYTHON_WARNS)
        for (NativeThreadObject *thread = threads; thread != NULL; thread = thread->next)
            end_thread(thread);
    take_turns(); /* it takes no GIL during its turn, which lasts a fraction of a millisecond */
    is_held = 1;
}

void sonde_native_threads_rest(void)
{
    SONDE_EXCLUDE_BEGIN(&list)
    rest_all();
    SONDE_EXCLUDE_END
}

void sonde_native_threads_wake(void)
{
    SONDE_EXCLUDE_BEGIN(&list)
    if (is_held)
        sem_post(&turns);
    is_held = 0;
    for (NativeThreadObject *thread = threads; thread != NULL; thread = thread->next)
        (void)begin_thread(thread); /* if there is no room for it, the next fork tries again */
    SONDE_EXCLUDE_END
}

static void thread_dealloc(NativeThreadObject *self)
{
    Py_CLEAR(self->page_map);
    Py_CLEAR(self->obey);
    free(self->upkeep.lock);
    for (int i = 0; i < SONDE_COMMANDS_N; i++)
        sonde_strings_free(self->upkeep.keeper.commands[i]);
    sonde_strings_free(self->upkeep.keeper.envp);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef thread_methods[] = {
    {"keep", (PyCFunction)thread_keep, METH_VARARGS,
     "keep(lock, argv, snapshot, env): start this collector whenever nobody holds its lock (None:\n"
     "never), and this snapshot whenever a signal asks for one."},
    {"start", (PyCFunction)thread_start, METH_NOARGS, "Start the thread."},
    {"rest", (PyCFunction)thread_rest, METH_NOARGS, "End the thread; wake() starts it again."},
    {"wake", (PyCFunction)thread_wake, METH_NOARGS, "Start the thread again after rest()."},
    {"stop", (PyCFunction)thread_stop, METH_NOARGS, "End the thread and wait for it."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject sonde_NativeThreadType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.NativeThread",
    .tp_basicsize = sizeof(NativeThreadObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "NativeThread(page, obey): a thread that has the main thread call `obey(start, signal)` when the\n"
              "control page asks for something, or when processes cannot be started (0 or -errno) or the\n"
              "signal's state has changed; None stands for what has not changed.",
    .tp_new = thread_new,
    .tp_dealloc = (destructor)thread_dealloc,
    .tp_methods = thread_methods,
};
