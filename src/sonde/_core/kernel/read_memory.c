/* Reading our own memory through the kernel: an address that is not mapped (any more) is
 * an error code, not a fault. A SIGSEGV handler would be faster, but that signal is
 * not ours to take: faulthandler, torch and others install their own handlers.
 */
#define _GNU_SOURCE 1
#include "kernel/read_memory.h"
#include "kernel/filter.h"
#include "kernel/fork.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

/* User space ends below this on both machines; this also keeps sums from wrapping. */
#define TOP ((uintptr_t)1 << 48)

enum { FIRST_PAGE = 4096 };

/* The process id, remembered because asking for it is a system call of its own. */
static struct {
    uint32_t forks; /* sonde_forks when we asked for it */
    pid_t pid;
} self = {.forks = UINT32_MAX};

static pid_t find_pid(void)
{
    if (self.forks != sonde_forks) {
        self.pid = getpid();
        self.forks = sonde_forks;
    }
    return self.pid;
}

static int may_be(uintptr_t from, size_t bytes)
{
    return from >= FIRST_PAGE && from < TOP && bytes < TOP - from;
}

int sonde_read_memory(void *to, uintptr_t from, size_t bytes)
{
    sonde_piece piece = {to, from, bytes};
    return sonde_read_pieces(&piece, 1);
}

int sonde_read_pieces(const sonde_piece *pieces, int pieces_n)
{
    struct iovec to[SONDE_MAX_PIECES], from[SONDE_MAX_PIECES];
    size_t bytes = 0;
    if (pieces_n < 0 || pieces_n > SONDE_MAX_PIECES)
        return -EINVAL;
    for (int i = 0; i < pieces_n; i++) {
        if (!may_be(pieces[i].from, pieces[i].bytes))
            return -EFAULT;
        to[i] = (struct iovec){pieces[i].to, pieces[i].bytes};
        from[i] = (struct iovec){(void *)pieces[i].from, pieces[i].bytes};
        bytes += pieces[i].bytes;
    }
    /* A filter that the program has installed meanwhile may end whoever makes the next call. */
    if (sonde_had_later_filter())
        return -EPERM;
    ssize_t done = process_vm_readv(find_pid(), to, (unsigned long)pieces_n, from,
                                    (unsigned long)pieces_n, 0);
    if (done < 0)
        return -errno;
    return (size_t)done == bytes ? 0 : -EFAULT;
}
