/* The one list of what happens in a forked child. */
#include "kernel/fork.h"
#include "format/format.h"

#include <errno.h>
#include <pthread.h>

enum { MOST = 32 };

SONDE_CHANGED_IN_CHILD uint32_t sonde_forks;
SONDE_CHANGED_IN_CHILD int64_t sonde_fork_ns;

static void (*functions[MOST])(void);
static int functions_n, is_full, is_watched;
static void (*before_fork)(void), (*after_fork)(void);

void sonde_fork_add(void (*in_child)(void))
{
    if (functions_n < MOST)
        functions[functions_n++] = in_child;
    else
        is_full = 1;
}

void sonde_fork_around(void (*before)(void), void (*after)(void))
{
    before_fork = before;
    after_fork = after;
}

static void run_all(void)
{
    sonde_forks++;
    sonde_fork_ns = sonde_clock_ns();
    for (int i = 0; i < functions_n; i++)
        functions[i]();
}

int sonde_fork_watch(void)
{
    if (is_full)
        return -ENOSPC;
    int failure = is_watched ? 0 : pthread_atfork(before_fork, after_fork, run_all);
    is_watched = failure == 0;
    return -failure;
}
