/* Preloaded: now and then a read of this process's own memory pauses before it begins, as if the sampler had been
 * interrupted between two pieces. With SLOW_READS=steady each read ends a little later, always by the same time, as
 * on a machine with slow system calls. */
#define _GNU_SOURCE 1
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST_NS 12000
#define STEADY_NS 1000
#define LOWEST ((off_t)1 << 24) /* where programs and libraries lie: not a place in a usual file */

enum { ONE_IN = 3 };

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static void spin(int64_t dur_ns)
{
    for (int64_t end = clock_ns() + dur_ns; clock_ns() < end;)
        ;
}

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    static int is_steady = -1;
    static _Thread_local uint64_t seed = 88172645463325252ull;
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    if (is_steady < 0)
        is_steady = getenv("SLOW_READS") != NULL;
    if (at > LOWEST && !is_steady && (seed >> 32) % ONE_IN == 0)
        spin((int64_t)(seed % MOST_NS));
    ssize_t done = syscall(SYS_pread64, fd, to, bytes, at);
    if (at > LOWEST && is_steady)
        spin(STEADY_NS);
    return done;
}

ssize_t pread64(int fd, void *to, size_t bytes, off_t at) { return pread(fd, to, bytes, at); }
