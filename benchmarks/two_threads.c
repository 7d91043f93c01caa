/* To be preloaded: a thread that only sleeps, and another one in each forked child. */
#define _GNU_SOURCE 1
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define STACK_BYTES (64 * 1024)

static pthread_attr_t small;
static struct timespec in_program = {0, 10000000}, in_child = {0, 100000000};

static void *rest(void *period)
{
    for (;;)
        nanosleep(period, NULL);
    return NULL;
}

static void start(struct timespec *period)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_create(&thread, &small, rest, period);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void start_in_child(void) { start(&in_child); }

__attribute__((constructor)) static void begin(void)
{
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK_BYTES);
    start(&in_program);
    pthread_atfork(NULL, NULL, start_in_child);
}
