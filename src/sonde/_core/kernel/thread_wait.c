/* What a thread waits for: told by the system call that it is in. See thread_wait.h. */
#define _GNU_SOURCE 1
#include "kernel/thread_wait.h"
#include "format/ordering.h"
#include "kernel/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FUTEX_PRIVATE = 128 };
enum { FUTEX_WAITV = 449, FACCESSAT2 = 439, EPOLL_PWAIT2 = 441, OPENAT2 = 437, CLONE3 = 435,
       IO_URING_ENTER = 426 }; /* the same on all machines */

const char *const sonde_wait_names[SONDE_WAIT_KINDS] = {
    [SONDE_WAIT_NONE] = "",         [SONDE_WAIT_OTHER] = "other",
    [SONDE_WAIT_LOCK] = "lock",     [SONDE_WAIT_GIL] = "gil",
    [SONDE_WAIT_SLEEP] = "sleep",   [SONDE_WAIT_POLL] = "poll",
    [SONDE_WAIT_NETWORK] = "network", [SONDE_WAIT_PIPE] = "pipe",
    [SONDE_WAIT_CHILD] = "child",   [SONDE_WAIT_DISK] = "disk",
    [SONDE_WAIT_FAULT] = "fault",   [SONDE_WAIT_DEVICE] = "device",
    [SONDE_WAIT_SHARED_LOCK] = "shared_lock",
};

static int refusal; /* atomic: see sonde_wait_refusal() */

/* Read a small file of a thread of this process. Returns its length, or -1. */
static ssize_t read_file(uint32_t tid, const char *name, char *text, size_t room)
{
    char path[64];
    if (sonde_has_later_filter_within(SONDE_NOW_NS))
        return -1;
    snprintf(path, sizeof path, "/proc/self/task/%u/%s", tid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    /* pread() instead of read(): if the program closes all its files at this moment and another
     * file gets this number, its position does not move. */
    ssize_t bytes = pread(fd, text, room - 1, 0);
    close(fd);
    text[bytes < 0 ? 0 : bytes] = 0;
    return bytes;
}

/* Is this socket one between processes of this machine? */
static int is_local(int fd)
{
    int domain = 0;
    socklen_t size = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
           domain == AF_UNIX;
}

/* What does a thread wait for that reads or writes this file? The number may be another file's by
 * now; then the answer is about that one.
 *
 * A plain stat() may ask the server of a network file system, and would wait for ever if that is what
 * the thread waits for. A filter might end us for the question: unless that was tried, the answer is not
 * known. */
static enum sonde_wait_kind find_file(int fd)
{
    char path[64];
    struct statx about;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (!sonde_may_ask_about_files() || statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, STATX_TYPE, &about) < 0)
        return SONDE_WAIT_OTHER;
    if (S_ISSOCK(about.stx_mode))
        return is_local(fd) ? SONDE_WAIT_PIPE : SONDE_WAIT_NETWORK;
    if (S_ISFIFO(about.stx_mode))
        return SONDE_WAIT_PIPE;
    if (S_ISCHR(about.stx_mode))
        return SONDE_WAIT_DEVICE;
    /* Event counters and the like are no file of any disk. */
    return S_ISREG(about.stx_mode) || S_ISDIR(about.stx_mode) || S_ISBLK(about.stx_mode)
               ? SONDE_WAIT_DISK
               : SONDE_WAIT_POLL;
}

static enum sonde_wait_kind find_kind(long number, const uint64_t args[6])
{
    switch (number) {
    case SYS_futex:
        return args[1] & FUTEX_PRIVATE ? SONDE_WAIT_LOCK : SONDE_WAIT_SHARED_LOCK;
    case FUTEX_WAITV:
        return SONDE_WAIT_LOCK;
    case SYS_semop:
    case SYS_semtimedop:
    case SYS_flock:
    case SYS_fcntl:
        return SONDE_WAIT_SHARED_LOCK;
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
        return SONDE_WAIT_SLEEP;
#ifdef SYS_poll
    case SYS_poll:
    case SYS_ppoll:
        return args[1] == 0 ? SONDE_WAIT_SLEEP : SONDE_WAIT_POLL;
    case SYS_select:
    case SYS_pselect6:
        return args[0] == 0 ? SONDE_WAIT_SLEEP : SONDE_WAIT_POLL;
    case SYS_epoll_wait:
        return SONDE_WAIT_POLL;
    case SYS_open:
    case SYS_creat:
    case SYS_stat:
    case SYS_lstat:
    case SYS_access:
    case SYS_readlink:
    case SYS_rename:
    case SYS_link:
    case SYS_symlink:
    case SYS_unlink:
    case SYS_mkdir:
    case SYS_rmdir:
    case SYS_chmod:
    case SYS_chown:
    case SYS_getdents:
        return SONDE_WAIT_DISK;
    case SYS_pause:
        return SONDE_WAIT_SLEEP;
    case SYS_vfork:
    case SYS_fork:
        return SONDE_WAIT_CHILD;
#else
    case SYS_ppoll:
        return args[1] == 0 ? SONDE_WAIT_SLEEP : SONDE_WAIT_POLL;
    case SYS_pselect6:
        return args[0] == 0 ? SONDE_WAIT_SLEEP : SONDE_WAIT_POLL;
#endif
    case SYS_epoll_pwait:
    case EPOLL_PWAIT2:
    case IO_URING_ENTER: /* for disks and networks alike */
        return SONDE_WAIT_POLL;
    case SYS_rt_sigtimedwait: /* a signal is waited for, perhaps for ever */
    case SYS_rt_sigsuspend:
        return SONDE_WAIT_SLEEP;
    case SYS_connect:
    case SYS_accept:
    case SYS_accept4:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_recvmmsg:
    case SYS_sendto:
    case SYS_sendmsg:
    case SYS_sendmmsg:
    case SYS_read:
    case SYS_readv:
    case SYS_pread64:
    case SYS_write:
    case SYS_writev:
    case SYS_pwrite64:
    case SYS_preadv:
    case SYS_pwritev:
    case SYS_preadv2:
    case SYS_pwritev2:
    case SYS_sendfile:
    case SYS_splice:
        return find_file((int)args[0]);
    case SYS_mq_timedreceive: /* what another process of this machine sends */
    case SYS_mq_timedsend:
    case SYS_msgrcv:
    case SYS_msgsnd:
        return SONDE_WAIT_PIPE;
    case SYS_wait4:
    case SYS_waitid:
    case SYS_clone: /* the child of posix_spawn has not started its program yet */
    case CLONE3:
        return SONDE_WAIT_CHILD;
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_sync:
    case SYS_syncfs:
    case SYS_sync_file_range:
    case SYS_openat:
    case OPENAT2:
    case SYS_close:
    case SYS_newfstatat:
    case SYS_fstat:
    case SYS_statx:
    case SYS_statfs:
    case SYS_fstatfs:
    case SYS_faccessat:
    case FACCESSAT2:
    case SYS_readlinkat:
    case SYS_chdir:
    case SYS_getdents64:
    case SYS_unlinkat:
#ifdef SYS_renameat
    case SYS_renameat:
#endif
    case SYS_renameat2:
    case SYS_linkat:
    case SYS_symlinkat:
    case SYS_mkdirat:
    case SYS_fchmod:
    case SYS_fchmodat:
    case SYS_fchownat:
    case SYS_utimensat:
    case SYS_getxattr:
    case SYS_setxattr:
    case SYS_fallocate:
    case SYS_truncate:
    case SYS_ftruncate:
    case SYS_fadvise64:
    case SYS_readahead:
    case SYS_copy_file_range:
    case SYS_io_getevents:
    case SYS_msync:
        return SONDE_WAIT_DISK;
    case SYS_mmap:
    case SYS_munmap:
    case SYS_mprotect:
    case SYS_mremap:
    case SYS_madvise:
    case SYS_brk:
        return SONDE_WAIT_FAULT;
    case SYS_ioctl:
        return SONDE_WAIT_DEVICE;
    default:
        return SONDE_WAIT_OTHER;
    }
}

/* A stop (SIGSTOP, a debugger, a look at the thread) interrupts every call, and the kernel goes on with three kinds by
 * restart_syscall, which does not say which of them it was: waits for a lock until some time, polls, and sleeps. The function of the
 * kernel in which the thread sleeps does. What was given to the call is still there. */
static long find_restarted(uint32_t tid)
{
    char text[96];
    if (read_file(tid, "wchan", text, sizeof text) <= 0 || strcmp(text, "0") == 0)
        return SYS_restart_syscall; /* the kernel does not tell, or the thread is about to run */
    if (strstr(text, "futex") != NULL)
        return SYS_futex;
    return strstr(text, "poll") != NULL ? SYS_ppoll : SYS_clock_nanosleep;
}

/* Is the thread off its CPU, by its state? Only where the kernel does not tell its system call. */
static sonde_thread_wait find_state(uint32_t tid, int error)
{
    char text[256];
    if (read_file(tid, "stat", text, sizeof text) < 0)
        return (sonde_thread_wait){SONDE_WAIT_NONE, 0}; /* it has ended, or nothing may be read now */
    if (error)
        sonde_store_relaxed(&refusal, error);
    /* The name in front of the state may contain anything, brackets included. */
    const char *name_end = strrchr(text, ')');
    int is_off = name_end != NULL && name_end[1] != 0 && name_end[2] != 'R';
    return (sonde_thread_wait){is_off ? SONDE_WAIT_OTHER : SONDE_WAIT_NONE, 0};
}

sonde_thread_wait sonde_wait_find(uint32_t tid)
{
    char text[256], *end;
    errno = 0;
    if (read_file(tid, "syscall", text, sizeof text) <= 0)
        return find_state(tid, errno);
    if (strncmp(text, "running", 7) == 0)
        return (sonde_thread_wait){SONDE_WAIT_NONE, 0};
    long number = strtol(text, &end, 10);
    if (number < 0) /* not in a system call, and yet not running: its memory is not there */
        return (sonde_thread_wait){SONDE_WAIT_FAULT, 0};
    uint64_t args[6];
    for (int i = 0; i < 6; i++)
        args[i] = strtoull(end, &end, 16);
    enum sonde_wait_kind kind = find_kind(number == SYS_restart_syscall ? find_restarted(tid) : number, args);
    return (sonde_thread_wait){kind, kind == SONDE_WAIT_LOCK ? args[0] : 0};
}

int sonde_wait_place(uint32_t tid, uint64_t *pc, uint64_t *sp)
{
    char text[256], *end;
    if (read_file(tid, "syscall", text, sizeof text) <= 0 || strncmp(text, "running", 7) == 0)
        return -EAGAIN;
    long number = strtol(text, &end, 10);
    for (int i = 0; number >= 0 && i < 6; i++)
        (void)strtoull(end, &end, 16); /* what it gave to the call */
    *sp = strtoull(end, &end, 16);
    *pc = strtoull(end, &end, 16);
    return 0;
}

int sonde_wait_refusal(void) { return sonde_load_relaxed(&refusal); }

int64_t sonde_wait_queue(uint32_t tid)
{
    char text[96], *end;
    if (read_file(tid, "schedstat", text, sizeof text) <= 0)
        return -1;
    strtoll(text, &end, 10); /* the time that it had a CPU */
    return strtoll(end, NULL, 10);
}
