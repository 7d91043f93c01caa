/* Start a process that is nobody's child.
 *
 * The caller is somebody's training job. A plain fork and exec would give it a child: SIGCHLD in
 * its handlers, a pid in its os.wait(), its pipes and sockets kept open by us. So a first clone,
 * without an exit signal and sharing memory (no page tables are copied, however large the job),
 * makes a second one and ends. Only a wait that asks for clones can see the first one, and we do
 * that wait.
 */
#define _GNU_SOURCE 1
#include "kernel/spawn.h"
#include "kernel/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK_BYTES = 64 * 1024 };

typedef struct {
    char *const *argv;
    char *const *envp;
    int line;             /* its standard input and output; -1: /dev/null */
    int caller;           /* its pid; 0: the new process is not to hold it */
    char *stack;          /* for the second clone */
    volatile int failure; /* set by either clone, in memory that they share */
} spawn_job;

static void close_from(int first)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0) == 0)
        return;
#endif
    struct rlimit limit;
    int last = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 65536 ? (int)limit.rlim_cur
                                                                               : 65536;
    for (int fd = first; fd < last; fd++)
        close(fd);
}

/* Have descriptor 3 stand for the caller. Through it the new process learns how the caller ended,
 * even if that was before the new process could look. Without it, the new process still works. */
static void leave_caller(int caller)
{
#ifdef SYS_pidfd_open
    int held = caller == 0 ? -1 : (int)syscall(SYS_pidfd_open, caller, 0);
    if (held >= 0)
        (void)fcntl(held, F_SETFD, 0); /* it is made to be closed at execve() */
#else
    (void)caller;
#endif
}

static int run(void *arg)
{
    spawn_job *job = arg;
    /* First move it to another number: the program may have closed its own 0, 1 or 2. */
    int line = job->line < 0 ? -1 : fcntl(job->line, F_DUPFD, 3);
    int null = open("/dev/null", O_RDWR);
    if ((job->line >= 0 && line < 0) || null < 0 || dup2(line < 0 ? null : line, 0) < 0 ||
        dup2(line < 0 ? null : line, 1) < 0 || dup2(null, 2) < 0) {
        job->failure = errno;
        _exit(127);
    }
    close_from(3);
    leave_caller(job->caller);
    if (chdir("/") < 0) {
        /* On failure it stays in the job's folder, which only keeps that folder busy. */
    }
    execve(job->argv[0], job->argv, job->envp);
    job->failure = errno;
    _exit(127);
}

static int detach(void *arg)
{
    spawn_job *job = arg;
    struct sigaction fresh = {.sa_handler = SIG_DFL};
    sigset_t none;
    setsid();
    for (int sig = 1; sig < NSIG; sig++)
        sigaction(sig, &fresh, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int pid = clone(run, job->stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, job);
    if (pid < 0)
        job->failure = errno;
    _exit(0);
}

int sonde_spawn(char *const argv[], char *const envp[], int line, int may_hold)
{
    char *stacks = mmap(NULL, 2 * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stacks == MAP_FAILED)
        return -errno;
    spawn_job job = {.argv = argv, .envp = envp, .line = line, .stack = stacks + STACK_BYTES,
                     .caller = may_hold ? getpid() : 0};
    sigset_t all, before;
    sigfillset(&all);
    /* A filter may have come since the caller looked. It may also forbid to give the stacks back: they stay. */
    if (sonde_has_later_filter())
        return -EPERM;
    /* A handler of the job must not run in a clone that shares its memory. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int pid = clone(detach, stacks + STACK_BYTES, CLONE_VM | CLONE_VFORK, &job);
    int failure = pid < 0 ? errno : 0;
    /* That took milliseconds. If a filter has come meanwhile it may forbid all that follows: our own thread, in
     * which signals are held back anyway, leaves a stack and a dead clone to the end of the job. */
    if (pid > 0 && sigismember(&before, SIGTERM) && sonde_has_later_filter())
        return 0;
    if (pid > 0)
        while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    munmap(stacks, 2 * STACK_BYTES);
    return -(failure ? failure : job.failure);
}
