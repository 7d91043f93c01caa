/* Preloaded: a read of several pieces pauses between two of them, as if it had been interrupted there. With
 * SLOW_READS=steady each read ends a little later, always by the same time, as on a machine with slow system
 * calls. */
#define _GNU_SOURCE 1
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST_NS 12000
#define STEADY_NS 3000

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

ssize_t process_vm_readv(pid_t pid, const struct iovec *to, unsigned long to_n, const struct iovec *from,
                         unsigned long from_n, unsigned long flags)
{
    static int is_steady = -1;
    static _Thread_local uint64_t seed = 88172645463325252ull;
    unsigned long first_n = 0;
    ssize_t first = 0;
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    if (is_steady < 0)
        is_steady = getenv("SLOW_READS") != NULL;
    if (is_steady) {
        ssize_t all = syscall(SYS_process_vm_readv, pid, to, to_n, from, from_n, flags);
        spin(STEADY_NS);
        return all;
    }
    if (to_n == from_n && to_n > 1) {
        first_n = 1 + (seed >> 32) % (to_n - 1);
        first = syscall(SYS_process_vm_readv, pid, to, first_n, from, first_n, flags);
        if (first < 0)
            return first;
        spin((int64_t)(seed % MOST_NS));
    }
    ssize_t rest = syscall(SYS_process_vm_readv, pid, to + first_n, to_n - first_n, from + first_n,
                           from_n - first_n, flags);
    return rest < 0 ? rest : first + rest;
}
