/* Asking about system calls that may be forbidden on pain of death. */
#define _GNU_SOURCE 1
#include "kernel/filter.h"
#include "format/format.h"
#include "format/ordering.h"
#include "kernel/fork.h"
#include "kernel/process_stat.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK_BYTES = 32 * 1024, HIGH_FD = 512 };

static int had_filter; /* atomic: what sonde_has_filter() said last */
static int may_ask;    /* atomic: the filter lets us ask what a file is */

/* What the kernel says about the main thread, which lives as long as the process. The file is opened before the
 * program can forbid that, and read without a position: if the program closes it and another file gets
 * its number, that one is not disturbed. */
static struct {
    int fd;
    uint32_t forks;   /* sonde_forks when it was opened: before that it is a parent's */
    ino_t number;     /* which file it is */
    int is_counted;
    int filters;      /* how many there were when that was first asked */
    uint32_t is_more; /* atomic: there are more by now */
    int64_t asked_ns; /* atomic: when that was asked last */
} watched = {.fd = -1};

/* ---- whether there is one ----------------------------------------------------------------- */

/* Read a short file; what cannot be read is empty. */
static void read_file(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd < 0 ? 0 : read(fd, text, room - 1);
    if (fd >= 0)
        close(fd);
    text[bytes < 0 ? 0 : bytes] = 0;
}

/* How many filters there are; 1 if a kernel before 5.9 says only that there are any. */
static int find_count(const char *text)
{
    if (strstr(text, "\nSeccomp:\t2") == NULL)
        return 0;
    const char *line = strstr(text, "\nSeccomp_filters:");
    int count = line ? atoi(line + strlen("\nSeccomp_filters:")) : 1;
    return count > 0 ? count : 1;
}

static int count_filters(void)
{
    char text[8192];
    read_file("/proc/thread-self/status", text, sizeof text);
    return find_count(text);
}

int sonde_has_filter(void)
{
    int has = count_filters() > 0;
    sonde_store_relaxed(&had_filter, has);
    return has;
}

int sonde_had_filter(void) { return sonde_load_relaxed(&had_filter) || sonde_had_later_filter(); }

int sonde_had_later_filter(void) { return (int)sonde_load_relaxed(&watched.is_more); }

/* Returns the number of filters; -1 if the file has been closed, or its process has ended. */
static int ask_watched(void)
{
    char text[8192];
    ssize_t bytes = watched.fd < 0 ? -1 : pread(watched.fd, text, sizeof text - 1, 0);
    if (bytes <= 0)
        return -1;
    text[bytes] = 0;
    return strncmp(text, "Name:", strlen("Name:")) ? -1 : find_count(text);
}

int sonde_has_later_filter(void)
{
    int64_t now_ns = sonde_clock_ns();
    int filters = sonde_had_later_filter() ? -1 : ask_watched();
    if (watched.is_counted && filters > watched.filters)
        sonde_store_relaxed(&watched.is_more, 1u);
    sonde_store_relaxed(&watched.asked_ns, now_ns);
    return sonde_had_later_filter();
}

int sonde_has_later_filter_within(int64_t age_ns)
{
    if (sonde_clock_ns() - sonde_load_relaxed(&watched.asked_ns) <= age_ns)
        return sonde_had_later_filter();
    return sonde_has_later_filter();
}

int sonde_filter_watch(void)
{
    if (sonde_has_later_filter() || (watched.fd >= 0 && watched.forks == sonde_forks))
        return sonde_had_later_filter();
    struct stat about;
    int low = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    int high = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, HIGH_FD);
    if (high >= 0)
        close(low);
    /* The parent's stays open in a child: its number may be another file's by now. */
    watched.fd = high < 0 ? low : high;
    watched.forks = sonde_forks;
    watched.number = watched.fd >= 0 && fstat(watched.fd, &about) == 0 ? about.st_ino : 0;
    if (!watched.is_counted) {
        watched.filters = ask_watched();
        watched.is_counted = watched.filters >= 0;
    }
    return sonde_has_later_filter();
}

void sonde_filter_unwatch(void)
{
    struct stat about;
    if (sonde_has_later_filter())
        return; /* it may forbid to close a file */
    /* The program may have closed it, and have another file of this number. */
    if (watched.fd >= 0 && watched.forks == sonde_forks && fstat(watched.fd, &about) == 0 &&
        about.st_ino == watched.number)
        close(watched.fd);
    watched.fd = -1;
}

/* ---- what it forbids ---------------------------------------------------------------------- */

/* Before Linux 5.16, a process that dumps core takes those that share its memory with it. The version
 * is read from a file, because uname() itself may be forbidden. */
static int may_share_memory(void)
{
    char text[64];
    int major = 0, minor = 0;
    read_file("/proc/sys/kernel/osrelease", text, sizeof text);
    return sscanf(text, "%d.%d", &major, &minor) == 2 && (major > 5 || (major == 5 && minor >= 16));
}

/* Run `work` in a process of its own. Returns its exit code, 256 if a signal has ended it, or
 * -errno. `shared` is the lowest word of its stack, which both see. */
static int try_apart(int (*work)(void *), const char **shared)
{
    int is_shared = may_share_memory();
    if (!is_shared && sonde_is_large())
        return -E2BIG;
    char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sigset_t all, before;
    int status = -1;
    if (stack == MAP_FAILED)
        return -errno;
    sigfillset(&all);
    /* A handler of the job must not run in a clone that shares its memory. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int flags = is_shared ? CLONE_VM | CLONE_VFORK : CLONE_VFORK;
    int pid = clone(work, stack + STACK_BYTES, flags, stack);
    int failure = pid < 0 ? -errno : 0;
    if (pid > 0)
        while (waitpid(pid, &status, __WCLONE) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    memcpy(shared, stack, sizeof *shared);
    munmap(stack, STACK_BYTES);
    if (failure < 0)
        return failure;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256;
}

static int read_self(void *shared)
{
    (void)shared;
    char from = 1, to = 0;
    struct iovec local = {&to, 1}, remote = {&from, 1};
    _exit(process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1 ? 0 : 1);
}

int sonde_may_call_readv(void)
{
    const char *none;
    return try_apart(read_self, &none) == 0;
}

/* The calls of thread_wait.c that tell what a file is. */
static int ask_about_files(void *shared)
{
    (void)shared;
    struct statx about;
    int domain;
    socklen_t size = sizeof domain;
    (void)!statx(-1, "", AT_STATX_DONT_SYNC, STATX_TYPE, &about);
    (void)!getsockopt(-1, SOL_SOCKET, SO_DOMAIN, &domain, &size);
    _exit(0);
}

void sonde_filter_try_files(void)
{
    const char *none;
    sonde_store_relaxed(&may_ask, try_apart(ask_about_files, &none) == 0);
}

int sonde_may_ask_about_files(void)
{
    return !sonde_had_later_filter() && (!sonde_load_relaxed(&had_filter) || sonde_load_relaxed(&may_ask));
}

/* Make each call that a recording needs and a program may do without, in a way that changes
 * nothing. A filter looks at the number of the call, so that the arguments may be wrong. */
static int call_all(void *shared)
{
    const char *volatile *current = shared;
    struct utsname names;
    struct stat facts;
    char byte;
#define TRY(name, call) (*current = (name), (void)!(call))
    TRY("prctl", prctl(PR_GET_SECCOMP, 0, 0, 0, 0));
    TRY("uname", uname(&names));
    TRY("getuid", getuid());
    TRY("geteuid", geteuid());
    TRY("getppid", getppid());
    TRY("gettid", syscall(SYS_gettid));
    TRY("open", open("", O_RDONLY | O_CLOEXEC));
    TRY("access", access("", F_OK));
    TRY("stat", stat("", &facts));
    TRY("mkdir", mkdir("", 0700));
    TRY("mkdirat", mkdirat(-1, "", 0700));
    TRY("rename", rename("", ""));
    TRY("renameat", renameat(-1, "", -1, ""));
    TRY("unlink", unlink(""));
    TRY("unlinkat", unlinkat(-1, "", 0));
    TRY("getdents64", syscall(SYS_getdents64, -1, &byte, 1));
    TRY("fallocate", fallocate(-1, 0, 0, 1));
    TRY("ftruncate", ftruncate(-1, 0));
    TRY("flock", flock(-1, LOCK_SH));
    TRY("fsync", fsync(-1));
    TRY("pread64", pread(-1, &byte, 1, 0));
    TRY("lseek", lseek(-1, 0, SEEK_SET));
    TRY("fcntl", fcntl(-1, F_GETFD));
    TRY("ioctl", isatty(-1));
    TRY("clock_gettime", syscall(SYS_clock_gettime, -1, NULL));
#undef TRY
    *current = NULL;
    _exit(0);
}

const char *sonde_find_deadly_call(void)
{
    static int is_known; /* under the GIL */
    static const char *deadly;
    const char *last = NULL;
    if (!is_known && count_filters() > 0 && try_apart(call_all, &last) == 256)
        deadly = last;
    is_known = 1;
    return deadly;
}
