/* Preloaded: now and then a read of this process's own memory pauses before it begins, as if the sampler had been
 * interrupted between two pieces. With SLOW_READS=steady each read ends a little later, always by the same time, as
 * on a machine with slow system calls; with a number in its place, by so many nanoseconds. */
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
    static int64_t steady_ns = -1;
    static _Thread_local uint64_t seed = 88172645463325252ull;
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    if (steady_ns < 0) {
        const char *told = getenv("SLOW_READS");
        steady_ns = told == NULL ? 0 : atoll(told) > 0 ? atoll(told) : STEADY_NS;
    }
    if (at > LOWEST && steady_ns == 0 && (seed >> 32) % ONE_IN == 0)
        spin((int64_t)(seed % MOST_NS));
    ssize_t done = syscall(SYS_pread64, fd, to, bytes, at);
    if (at > LOWEST && steady_ns > 0)
        spin(steady_ns);
    return done;
}

ssize_t pread64(int fd, void *to, size_t bytes, off_t at) { return pread(fd, to, bytes, at); }
