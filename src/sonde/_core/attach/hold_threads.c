/* hold(): make threads of another process wait a moment, so that the visitor gets the GIL.
 *
 * A thread that releases the GIL for microseconds, again and again, takes it back before those
 * that wait for it have woken up. Here it is stopped where it is about to make a system call: if
 * it released the GIL for that, the GIL is free now. All busy threads have to be stopped at the
 * same time, or the next of them takes it.
 *
 * A thread is never traced inside a system call that may wait: it is let go from where the call
 * begins, so we never have to interrupt one. Nothing that belongs to the program is written to.
 */
#define _GNU_SOURCE 1
#include "attach/attach.h"
#include "attach/ptrace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

enum { MOST_THREADS = 256, NAP_NS = 50000 };

static const int64_t HOLD_NS = 100000000;       /* how long one thread is held at one system call */
static const int64_t IN_VAIN_NS = 2000000;     /* all are held, yet the visitor has no GIL */

/* HELD: it is stopped where a system call begins. */
enum { RUNS, WAITS, HELD };

typedef struct {
    pid_t tid;
    int state;
    int is_inside; /* it is inside a system call that we let pass */
    int64_t since_ns; /* when it was held */
} one;

typedef struct {
    pid_t pid, visitor, tool;
    int64_t until_ns;
    one threads[MOST_THREADS];
    int n;
    int is_stir; /* a thread has stopped since we last checked */
} crowd;

/* ---- what /proc says ------------------------------------------------------------ */

/* Return a thread's state ('R', 'S', …), or 0 if the thread is gone. */
static char read_state(pid_t pid, pid_t tid)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t bytes = read(fd, line, sizeof line - 1);
    close(fd);
    if (bytes <= 0)
        return 0;
    line[bytes] = 0;
    /* The name, in brackets, may contain anything. */
    const char *end = strrchr(line, ')');
    return end != NULL && end[1] == ' ' ? end[2] : 0;
}

static int is_known(const crowd *self, pid_t tid)
{
    for (int i = 0; i < self->n; i++)
        if (self->threads[i].tid == tid)
            return 1;
    return 0;
}

/* A thread that waits is left alone: only one that runs can take the GIL. */
static void catch_one(crowd *self, pid_t tid)
{
    if (tid == self->visitor || is_known(self, tid) || read_state(self->pid, tid) != 'R')
        return;
    /* Somebody else may trace it, or it has just ended. */
    if (ptrace(PTRACE_SEIZE, tid, NULL, (void *)PTRACE_O_TRACESYSGOOD) < 0)
        return;
    /* It has to stop once before we can ask it to stop at a system call. */
    ptrace(PTRACE_INTERRUPT, tid, NULL, NULL);
    self->threads[self->n++] = (one){.tid = tid};
}

static int catch_busy(crowd *self)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", self->pid);
    DIR *folder = opendir(path);
    if (folder == NULL)
        return -ESRCH;
    struct dirent *entry;
    while ((entry = readdir(folder)) != NULL && self->n < MOST_THREADS)
        if (entry->d_name[0] != '.')
            catch_one(self, (pid_t)atoi(entry->d_name));
    closedir(folder);
    return 0;
}

/* ---- a thread that has stopped ---------------------------------------------------- */

/* Does the thread wait for a lock or a condition, like every thread that wants the GIL? The
 * kernel restarts such a wait by itself when it is interrupted, so a thread may be traced here. */
static int is_waiting(const sonde_where *where)
{
    int operation = (int)where->second & FUTEX_CMD_MASK;
    return where->number == SYS_restart_syscall ||
           (where->number == SYS_futex &&
            (operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET));
}

/* Is this a system call that never waits and is made while holding the GIL, or the lock that
 * guards it? Stopping a thread there helps nobody. */
static int is_passing(const sonde_where *where)
{
    switch (where->number) {
    case SYS_futex:
    case SYS_mmap:
    case SYS_munmap:
    case SYS_mremap:
    case SYS_mprotect:
    case SYS_madvise:
    case SYS_brk:
    case SYS_getpid:
    case SYS_gettid:
    case SYS_rt_sigprocmask:
    case SYS_rt_sigreturn:
        return 1;
    default:
        return 0;
    }
}

/* Let the thread go on untraced. Returns 0 if it was killed; then the kernel will report that. */
static int let_go(one *thread)
{
    thread->state = RUNS;
    return ptrace(PTRACE_DETACH, thread->tid, NULL, NULL) == 0;
}

static int send_on(one *thread, int signal)
{
    ptrace(PTRACE_SYSCALL, thread->tid, NULL, (void *)(intptr_t)signal);
    return 0;
}

/* Handle a stop at the beginning or the end of a system call. */
static int stand(one *thread)
{
    sonde_where where;
    thread->state = RUNS;
    thread->is_inside = !thread->is_inside;
    if (!thread->is_inside || sonde_registers_where(thread->tid, &where) < 0)
        return send_on(thread, 0);
    if (is_waiting(&where))
        thread->state = WAITS;
    if (is_waiting(&where) || is_passing(&where))
        return send_on(thread, 0);
    thread->state = HELD;
    thread->since_ns = sonde_clock_ns();
    return 0;
}

/* Handle a stop; `status` is what waitid() says about it. Returns 1 if we no longer trace the
 * thread. */
static int handle_stop(one *thread, int status)
{
    int signal = status & 0x7f;
    if (status >> 8 == PTRACE_EVENT_STOP) {
        /* Either we asked for it, or the whole process was stopped: then it stays stopped. */
        return signal == SIGTRAP ? send_on(thread, 0) : let_go(thread);
    }
    return status == (SIGTRAP | 0x80) ? stand(thread) : send_on(thread, signal);
}

/* Handle what the kernel reports about a thread. Returns 1 if we no longer trace it. */
static int inspect(crowd *self, one *thread)
{
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)thread->tid, &info, WNOHANG | WSTOPPED | WEXITED | __WALL) < 0)
        return errno != EINTR;
    if (info.si_pid == 0)
        return 0;
    if (info.si_code != CLD_TRAPPED && info.si_code != CLD_STOPPED)
        return 1; /* it has ended */
    if (thread->state == HELD)
        return 0;
    self->is_stir = 1;
    return handle_stop(thread, info.si_status);
}

static void look_at_all(crowd *self)
{
    self->is_stir = 0;
    for (int i = self->n - 1; i >= 0; i--)
        if (inspect(self, &self->threads[i]))
            self->threads[i] = self->threads[--self->n];
}

/* ---- all of them -------------------------------------------------------------------- */

static void nap(void) { nanosleep(&(struct timespec){0, NAP_NS}, NULL); }

/* Release the threads that were held for long enough, or all of them if holding them was in vain:
 * then one of them has the GIL, and must go on until it releases it. */
static void let_some_go(crowd *self, int64_t now_ns, int is_in_vain)
{
    for (int i = self->n - 1; i >= 0; i--) {
        one *thread = &self->threads[i];
        if (thread->state == HELD && (is_in_vain || now_ns - thread->since_ns > HOLD_NS) &&
            let_go(thread))
            self->threads[i] = self->threads[--self->n];
    }
}

static int is_any_running(const crowd *self)
{
    for (int i = 0; i < self->n; i++)
        if (self->threads[i].state == RUNS)
            return 1;
    return 0;
}

/* Hold threads until the visitor is done or the time is up. */
static void hold_all(crowd *self)
{
    int64_t now_ns = sonde_clock_ns(), still_ns = now_ns;
    for (; now_ns < self->until_ns; now_ns = sonde_clock_ns()) {
        char state = read_state(self->pid, self->visitor);
        if (state == 0 || catch_busy(self) < 0)
            return;
        look_at_all(self);
        if (state != 'S' || is_any_running(self))
            still_ns = now_ns;
        let_some_go(self, now_ns, now_ns - still_ns > IN_VAIN_NS);
        if (!self->is_stir)
            nap();
    }
}

/* Hold them until the time is up, and not longer than the tool lives. */
static int hold_in_tracer(void *of)
{
    crowd *self = of;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == self->tool) /* it was still alive when we asked to die with it */
        hold_all(self);
    return 0;
}

static int run_hold(crowd *self)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = sonde_tracer_run(hold_in_tracer, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static PyObject *hold(PyObject *Py_UNUSED(module), PyObject *args)
{
    crowd self = {.tool = getpid()};
    long long until_ns;
    if (!PyArg_ParseTuple(args, "iiL", &self.pid, &self.visitor, &until_ns))
        return NULL;
    self.until_ns = until_ns;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = run_hold(&self);
    Py_END_ALLOW_THREADS
    if (status < 0) {
        errno = -status;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

PyMethodDef sonde_hold_threads_methods[] = {
    {"hold", hold, METH_VARARGS,
     "hold(pid, visitor, until_ns): make the busy threads of a process wait a moment at each of their\n"
     "system calls, until the visitor is done."},
    {NULL, NULL, 0, NULL},
};
