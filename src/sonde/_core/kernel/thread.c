/* Threads of this process: started, counted, told apart. */
#define _GNU_SOURCE 1
#include "kernel/thread.h"
#include "format/format.h"
#include "format/ordering.h"
#include "kernel/filter.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (256 * 1024)
#define PROMPT_NS 100000 /* the shortest slice that the kernel grants */
#define GONE_NS 50000000 /* how long a fork waits at most for the kernel to forget threads that have ended */
#define GONE_STEP_NS 20000

__thread sonde_thread_id sonde_thread_me = {UINT32_MAX, 0};

int32_t sonde_thread_ask(void)
{
    sonde_thread_me = (sonde_thread_id){sonde_forks, (int32_t)syscall(SYS_gettid)};
    return sonde_thread_me.tid;
}

enum { FREE, TAKEN, ENDED };

/* The threads of ours, as many as are to be told apart; any more are started all the same. */
typedef struct {
    uint32_t state; /* atomic */
    clockid_t clock;
    void *(*body)(void *);
    void *arg;
} started_thread;

enum { STARTED_N = 12 };

SONDE_CHANGED_IN_CHILD static started_thread started[STARTED_N];

static void forget_in_child(void)
{
    for (int i = 0; i < STARTED_N; i++)
        SONDE_RESET(started[i].state, FREE);
}

SONDE_IN_CHILD(forget_in_child)

static started_thread *take_place_from(uint32_t before)
{
    for (int i = 0; i < STARTED_N; i++) {
        uint32_t state = before;
        /* Acquire: the thread that had this place is done with it. */
        if (sonde_cas_acquire(&started[i].state, &state, TAKEN))
            return &started[i];
    }
    return NULL;
}

static void *run(void *arg)
{
    started_thread *self = arg;
    uint32_t forks = sonde_forks;
    pthread_getcpuclockid(pthread_self(), &self->clock); /* no system call: a filter may forbid one */
    void *result = self->body(self->arg);
    /* In a child that the body forked, this place may be another thread's. Release: whoever sees this reads the clock. */
    if (forks == sonde_forks)
        sonde_store_release(&self->state, ENDED);
    return result;
}

static int start_thread(const pthread_attr_t *attr, void *(*body)(void *), void *arg, pthread_t *thread)
{
    started_thread *place = take_place_from(FREE);
    if (place == NULL)
        place = take_place_from(ENDED);
    if (place == NULL)
        return pthread_create(thread, attr, body, arg);
    place->body = body;
    place->arg = arg;
    int failure = pthread_create(thread, attr, run, place);
    if (failure)
        sonde_store_release(&place->state, FREE); /* release: as run() does */
    return failure;
}

/* Does the kernel still know the thread that this is the clock of? We make the system call ourselves: the C library
 * refuses clocks that it did not make. */
static int is_known(clockid_t clock)
{
    struct timespec now;
    return syscall(SYS_clock_gettime, clock, &now) == 0;
}

void sonde_threads_await_gone(void)
{
    static uint32_t nobody_wakes;
    int64_t end_ns = sonde_clock_ns() + GONE_NS;
    for (started_thread *one = started; one < started + STARTED_N; one++) {
        uint32_t state = ENDED;
        /* Acquire: its clock was written before. */
        if (sonde_load_acquire(&one->state) != ENDED)
            continue;
        clockid_t clock = one->clock;
        if (sonde_has_later_filter_within(SONDE_NOW_NS))
            return;
        /* A place that is taken meanwhile is another thread's. */
        while (is_known(clock) && sonde_load_relaxed(&one->state) == ENDED && sonde_clock_ns() < end_ns) {
            /* Asleep, because another program may have the processor that the thread needs to end. */
            sonde_wait(&nobody_wakes, 0, GONE_STEP_NS);
            if (sonde_has_later_filter_within(SONDE_NOW_NS))
                return;
        }
        (void)sonde_cas_relaxed(&one->state, &state, FREE);
    }
}

int sonde_thread_start(void *(*body)(void *), void *arg, pthread_t *thread)
{
    pthread_attr_t attr;
    sigset_t all, before;
    if (sonde_had_later_filter())
        return -EPERM; /* it may end whoever starts one */
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    /* Signals belong to the job's own threads. */
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* except ours: see map_guard.h */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = start_thread(&attr, body, arg, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return -failure;
}

void sonde_thread_park(uint32_t *parked)
{
    /* Release: whoever sees this knows that the thread is done with everything else. */
    sonde_store_release(parked, 1);
    sonde_wake(parked);
    for (;;)
        sonde_wait_until(parked, 1, INT64_MAX);
}

void sonde_thread_await_parked(uint32_t *parked)
{
    while (!sonde_load_acquire(parked))
        sonde_wait_until(parked, 0, INT64_MAX);
}

/* As the kernel's struct sched_attr, which C libraries do not all have. */
typedef struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
} sched_rules;

void sonde_thread_be_prompt(void)
{
    enum { RESET_ON_FORK = 1, NORMAL = 0 };
    sched_rules rules = {0};
    if (sonde_has_filter() || syscall(SYS_sched_getattr, 0, &rules, sizeof rules, 0) != 0 ||
        rules.policy != NORMAL)
        return;
    rules.size = sizeof rules;
    rules.flags = RESET_ON_FORK; /* what this thread starts is in no hurry */
    rules.runtime_ns = PROMPT_NS; /* a thread with a short slice comes before those with long ones */
    (void)syscall(SYS_sched_setattr, 0, &rules, 0);
}

int64_t sonde_thread_cpu(uint32_t tid)
{
    struct timespec now;
    clockid_t clock = (clockid_t)(~tid << 3 | 6);
    /* We make the system call ourselves: the C library refuses clocks that it did not make. */
    if (syscall(SYS_clock_gettime, clock, &now) != 0)
        return -1;
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
