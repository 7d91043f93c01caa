/* Preloaded: a read of several pieces pauses between two of them, as if it had been interrupted there. */
#define _GNU_SOURCE 1
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST_NS 12000

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *to, unsigned long to_n, const struct iovec *from,
                         unsigned long from_n, unsigned long flags)
{
    static _Thread_local uint64_t seed = 88172645463325252ull;
    unsigned long first_n = 0;
    ssize_t first = 0;
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    if (to_n == from_n && to_n > 1) {
        first_n = 1 + (seed >> 32) % (to_n - 1);
        first = syscall(SYS_process_vm_readv, pid, to, first_n, from, first_n, flags);
        if (first < 0)
            return first;
        for (int64_t end = clock_ns() + (int64_t)(seed % MOST_NS); clock_ns() < end;)
            ;
    }
    ssize_t rest = syscall(SYS_process_vm_readv, pid, to + first_n, to_n - first_n, from + first_n,
                           from_n - first_n, flags);
    return rest < 0 ? rest : first + rest;
}
