/* Reading our own memory through the kernel: an address that is not mapped (any more) is
 * an error code, not a fault. A SIGSEGV handler would be faster, but that signal is
 * not ours to take: faulthandler, torch and others install their own handlers.
 *
 * It is read through /proc/self/mem. process_vm_readv() takes half the time for several pieces, but a
 * process that was read with it once is marked for ever as one whose pages may be pinned, and then
 * each fork looks at every page of it: the call of fork in a job of 64 MB took 40 % longer.
 *
 * The file has a high number, out of the way of programs that close "all" low ones, and is closed only if it
 * is still the file that we opened. It is read without a position: if the program closes it and another
 * file gets its number, that one is not disturbed. A forked child closes it before anything else:
 * there it would still be its parent's memory.
 */
#define _GNU_SOURCE 1
#include "kernel/read_memory.h"
#include "format/ordering.h"
#include "kernel/filter.h"
#include "kernel/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* User space ends below this on both machines; this also keeps sums from wrapping. */
#define TOP ((uintptr_t)1 << 48)

enum { FIRST_PAGE = 4096, HIGH_FD = 512, TRUSTED = 64 };

SONDE_CHANGED_IN_CHILD static struct {
    int fd;         /* atomic; -1: there is none */
    int is_opening; /* atomic: a thread opens it */
    int trust;      /* atomic: how many turns it may be used without a look at which file it is */
    dev_t dev;
    ino_t ino;
} file = {.fd = -1};

static int is_call_forbidden; /* atomic: process_vm_readv() may end us */

/* ---- the file ----------------------------------------------------------------------------------- */

static int is_ours(int fd)
{
    struct stat about;
    return fd >= 0 && fstat(fd, &about) == 0 && about.st_dev == file.dev && about.st_ino == file.ino;
}

static void close_file(void)
{
    int fd = file.fd;
    if (fd < 0)
        return;
    sonde_store_relaxed(&file.fd, -1);
    sonde_store_relaxed(&file.trust, 0);
    if (is_ours(fd))
        close(fd);
}

static void close_in_child(void)
{
    SONDE_RESET(file.is_opening, 0);
    close_file();
}

SONDE_IN_CHILD(close_in_child)

static void open_file(void)
{
    struct stat about;
    int low = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    int high = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, HIGH_FD);
    if (high >= 0)
        close(low);
    int fd = high < 0 ? low : high;
    if (fd >= 0 && fstat(fd, &about) == 0) {
        file.dev = about.st_dev;
        file.ino = about.st_ino;
    }
    sonde_store_relaxed(&file.fd, fd);
}

/* Is there no file, or may its number be another file's by now? */
static int is_doubtful(void)
{
    int trust = sonde_load_relaxed(&file.trust);
    if (trust > 0) {
        sonde_store_relaxed(&file.trust, trust - 1);
        return 0;
    }
    sonde_store_relaxed(&file.trust, TRUSTED);
    return !is_ours(sonde_load_relaxed(&file.fd));
}

int sonde_memory_open(void)
{
    int nobody = 0;
    if (sonde_had_later_filter() || !is_doubtful())
        return sonde_load_relaxed(&file.fd) >= 0;
    /* Acquire and release: who opens it next sees which file this one was. */
    if (sonde_cas_acquire(&file.is_opening, &nobody, 1)) {
        open_file();
        sonde_store_release(&file.is_opening, 0);
    }
    return sonde_load_relaxed(&file.fd) >= 0;
}

void sonde_memory_close(void)
{
    if (!sonde_has_later_filter()) /* it may forbid to close a file */
        close_file();
}

void sonde_memory_forbid_call(void) { sonde_store_relaxed(&is_call_forbidden, 1); }

/* ---- reading ------------------------------------------------------------------------------------ */

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

/* Where there is no /proc, or the kernel keeps its files from us. */
static int read_by_call(const sonde_piece *pieces, int pieces_n)
{
    struct iovec to[SONDE_MAX_PIECES], from[SONDE_MAX_PIECES];
    size_t bytes = 0;
    if (sonde_load_relaxed(&is_call_forbidden))
        return -EPERM;
    for (int i = 0; i < pieces_n; i++) {
        to[i] = (struct iovec){pieces[i].to, pieces[i].bytes};
        from[i] = (struct iovec){(void *)pieces[i].from, pieces[i].bytes};
        bytes += pieces[i].bytes;
    }
    ssize_t done = process_vm_readv(find_pid(), to, (unsigned long)pieces_n, from,
                                    (unsigned long)pieces_n, 0);
    if (done < 0)
        return -errno;
    return (size_t)done == bytes ? 0 : -EFAULT;
}

int sonde_read_pieces(const sonde_piece *pieces, int pieces_n)
{
    int fd = sonde_load_relaxed(&file.fd);
    if (pieces_n < 0 || pieces_n > SONDE_MAX_PIECES)
        return -EINVAL;
    for (int i = 0; i < pieces_n; i++)
        if (!may_be(pieces[i].from, pieces[i].bytes))
            return -EFAULT;
    /* A filter that the program has installed meanwhile may end whoever makes the next call. */
    if (sonde_had_later_filter())
        return -EPERM;
    if (fd < 0 && file.ino != 0)
        return -EBADF; /* another thread has just closed it: the call would leave its mark for ever */
    if (fd < 0)
        return read_by_call(pieces, pieces_n);
    for (int i = 0; i < pieces_n; i++) {
        ssize_t done = pread(fd, pieces[i].to, pieces[i].bytes, (off_t)pieces[i].from);
        if (done != (ssize_t)pieces[i].bytes) {
            if (done == 0 || (done < 0 && errno != EIO)) /* no file of memory answers like this */
                sonde_store_relaxed(&file.trust, 0);
            return -EFAULT;
        }
    }
    return 0;
}
