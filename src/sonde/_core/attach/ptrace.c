/* ptrace: stop a thread, have it make a call, put it back. See ptrace.h.
 *
 * One thread is stopped while the others run on, so that they release the locks that they hold.
 * Every wait has a deadline. A signal that arrives meanwhile is kept and sent again at the end,
 * when the thread is back where the signal would have found it. PTRACE_O_EXITKILL is never set:
 * if the tool dies, the target lives.
 */
#define _GNU_SOURCE 1
#include "attach/ptrace.h"
#include "format/format.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif
#ifndef PTRACE_GETSIGMASK
#define PTRACE_GETSIGMASK 0x420a
#endif

enum { SPIN_NS = 300000, NAP_NS = 50000, PAGE = 4096, ROOM_PAGES = 8 };

enum { CLONE3 = 435 }; /* the same on all machines; older headers do not know it */

/* A thread that cannot be stopped is stuck in the kernel; waiting a moment longer than the
 * deadline is better than leaving it half traced. One that only waits for a processor stops when
 * it gets one: on a crowded machine that takes seconds. */
static const int64_t PATIENCE_NS = 2000000000, QUEUE_NS = 30000000000;

/* Wait until the thread stops, usually for microseconds. Returns 0 with `*status`, -ETIMEDOUT or
 * -ESRCH. */
static int wait_stop(pid_t tid, int64_t deadline_ns, int *status)
{
    int64_t begin_ns = sonde_clock_ns();
    for (;;) {
        pid_t done = waitpid(tid, status, __WALL | WNOHANG);
        if (done == tid)
            return WIFSTOPPED(*status) ? 0 : -ESRCH;
        if (done < 0 && errno != EINTR)
            return -ESRCH;
        int64_t now_ns = sonde_clock_ns();
        if (now_ns > deadline_ns)
            return -ETIMEDOUT;
        if (now_ns - begin_ns < SPIN_NS)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
}

static int is_event_stop(int status) { return status >> 16 == PTRACE_EVENT_STOP; }

static int is_syscall_stop(int status) { return WSTOPSIG(status) == (SIGTRAP | 0x80); }

static int resume(const sonde_ptraced *self, int how, int signal)
{
    return ptrace(how, self->tid, NULL, (void *)(intptr_t)signal) < 0 ? -errno : 0;
}

/* Did our call crash, or did somebody send the signal? */
static int is_crash(const sonde_ptraced *self, int signal)
{
    siginfo_t info;
    if (signal != SIGSEGV && signal != SIGBUS && signal != SIGILL && signal != SIGFPE &&
        signal != SIGTRAP && signal != SIGSYS)
        return 0;
    return ptrace(PTRACE_GETSIGINFO, self->tid, NULL, &info) == 0 && info.si_code > 0;
}

static void hold(sonde_ptraced *self, int signal)
{
    if (self->held_n < SONDE_MAX_HELD)
        self->held[self->held_n++] = signal;
}

static int detach(sonde_ptraced *self)
{
    /* The signals wait for the thread, which is still stopped. */
    for (int i = 0; i < self->held_n; i++)
        syscall(SYS_tgkill, self->pid, self->tid, self->held[i]);
    self->held_n = 0;
    return resume(self, PTRACE_DETACH, 0);
}

enum { RUNS, STANDS };
enum { PASS_ON, HOLD };

/* Does the thread wait for a processor, or has it just stopped? */
static int is_queued(const sonde_ptraced *self)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", self->pid, self->tid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    const char *state = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    fclose(file);
    return state != NULL && (strncmp(state, ") R", 3) == 0 || strncmp(state, ") t", 3) == 0);
}

/* Have the thread stop because we asked it to, and nowhere else. Signals that arrive first are
 * passed on, or held until the thread is back where they should find it. */
static int halt(sonde_ptraced *self, int state, int signals)
{
    int status, signal = 0;
    int64_t begin_ns = sonde_clock_ns(), deadline_ns = begin_ns + PATIENCE_NS;
    for (;;) {
        /* Asked again each time: any other stop cancels the request. */
        if (ptrace(PTRACE_INTERRUPT, self->tid, NULL, NULL) < 0)
            return -errno;
        int failure = state == STANDS ? resume(self, PTRACE_CONT, signal) : 0;
        if (failure == 0)
            failure = wait_stop(self->tid, deadline_ns, &status);
        if (failure == -ETIMEDOUT && deadline_ns < begin_ns + QUEUE_NS && is_queued(self)) {
            deadline_ns += PATIENCE_NS;
            state = RUNS;
            continue;
        }
        if (failure < 0 || is_event_stop(status))
            return failure;
        state = STANDS;
        signal = is_syscall_stop(status) ? 0 : WSTOPSIG(status);
        if (signal && signals == HOLD) {
            hold(self, signal);
            signal = 0;
        }
    }
}

int sonde_ptrace_place(sonde_ptraced *self)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", self->pid, self->tid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return errno == ENOENT ? -ESRCH : -errno;
    char *read = fgets(line, sizeof line, file);
    fclose(file);
    if (read == NULL)
        return -ESRCH;
    long long number;
    unsigned long long v[8];
    sonde_waiting_place *place = &self->place;
    memset(place, 0, sizeof *place);
    int got = sscanf(line, "%lld %llx %llx %llx %llx %llx %llx %llx %llx", &number, &v[0], &v[1],
                     &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]);
    /* A thread that waits for a processor, and is in no system call, has the number -1. */
    int runs = strncmp(line, "running", 7) == 0 || (got == 3 && number == -1);
    place->number = got == 9 ? number : runs ? SONDE_RUNS : SONDE_NOWHERE;
    for (int i = 0; i < 6 && got == 9; i++)
        place->args[i] = v[i];
    place->sp = got == 9 ? v[6] : 0;
    place->pc = got == 9 ? v[7] : 0;
    return 0;
}

int sonde_ptrace_stop(sonde_ptraced *self)
{
    self->held_n = 0;
    self->made = 0;
    if (ptrace(PTRACE_SEIZE, self->tid, NULL, (void *)PTRACE_O_TRACESYSGOOD) < 0)
        return -errno;
    int status = halt(self, RUNS, PASS_ON);
    if (status == -ETIMEDOUT)
        return -EBUSY;
    if (status == 0)
        status = sonde_registers_save(self->tid, &self->was);
    if (status == 0 && ptrace(PTRACE_GETSIGMASK, self->tid, (void *)sizeof self->mask,
                              &self->mask) < 0)
        status = -errno;
    if (status < 0 && status != -ESRCH)
        detach(self);
    return status;
}

int sonde_ptrace_release(sonde_ptraced *self)
{
    sonde_registers_mend(&self->was, &self->place);
    int status = sonde_registers_restore(self->tid, &self->was);
    int left = detach(self);
    return status < 0 ? status : left;
}

int sonde_ptrace_write(const sonde_ptraced *self, uint64_t to, const void *from, size_t bytes)
{
    /* Word by word, but it also writes where the program itself must not. */
    for (size_t done = 0; done < bytes; done += 8) {
        uint64_t word;
        memcpy(&word, (const uint8_t *)from + done, sizeof word);
        if (ptrace(PTRACE_POKEDATA, self->tid, (void *)(to + done), (void *)word) < 0)
            return -errno;
    }
    return 0;
}

int sonde_ptrace_read(const sonde_ptraced *self, void *to, uint64_t from, size_t bytes)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/mem", self->pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t done = pread(fd, to, bytes, (off_t)from);
        close(fd);
        return done == (ssize_t)bytes ? 0 : -EFAULT;
    }
    /* After this call each fork of the process is slower, for ever: see kernel/read_memory.c. */
    struct iovec here = {to, bytes}, there = {(void *)from, bytes};
    ssize_t done = process_vm_readv(self->pid, &here, 1, &there, 1, 0);
    if (done < 0)
        return -errno;
    return (size_t)done == bytes ? 0 : -EFAULT;
}

/* Is there room on the stack for a call? The main thread's stack grows as it is used. */
static int has_room(const sonde_ptraced *self, uint64_t at)
{
    uint64_t word;
    for (uint64_t page = 1; page <= ROOM_PAGES && self->tid != self->pid; page++)
        if (sonde_ptrace_read(self, &word, at - page * PAGE, sizeof word) < 0)
            return 0;
    return 1;
}

static int is_birth(int64_t number) { return number == SYS_clone || number == CLONE3; }

/* Handle one stop of the thread in our call. Returns 1 when the call is about to return, 0 to go
 * on. */
static int handle_stop(sonde_ptraced *self, int status, uint64_t at, int *is_inside)
{
    sonde_where where;
    if (is_event_stop(status))
        return 0; /* the whole process was stopped, and is stopped again when we let go */
    if (!is_syscall_stop(status)) {
        if (is_crash(self, WSTOPSIG(status)))
            return -EFAULT;
        hold(self, WSTOPSIG(status));
        return 0;
    }
    *is_inside = !*is_inside;
    int failure = sonde_registers_where(self->tid, &where);
    if (failure < 0)
        return failure;
    self->answer = where.answer;
    if (*is_inside)
        return sonde_call_is_over(at, &where);
    self->result = where.result;
    if (is_birth(where.number) && where.result > 0)
        self->made = (pid_t)where.result;
    return 0;
}

/* The deadline has passed inside the call: let go of the thread. Once it gets what it waits for,
 * it returns through the frame on its stack, and nobody has to be there. */
static int leave(sonde_ptraced *self)
{
    int status = halt(self, RUNS, PASS_ON);
    if (status == 0)
        detach(self);
    return status == 0 ? -ETIMEDOUT : status == -ETIMEDOUT ? -EBUSY : status;
}

/* The thread is about to call rt_sigreturn: stop it where the kernel accepts new registers as
 * those of an interrupted system call. */
static int come_back(sonde_ptraced *self)
{
    int failure = 0;
    /* rt_sigreturn loses the rest of a sleep, so in that case it is skipped. Only in that case:
     * without it the thread would be lost if we died in the next microseconds. */
    if (sonde_registers_rest(&self->was, &self->place))
        failure = sonde_call_skip(self->tid);
    if (failure == 0)
        failure = halt(self, STANDS, HOLD);
    return failure == -ETIMEDOUT ? -EBUSY : failure;
}

static int run_call(sonde_ptraced *self, uint64_t at)
{
    int status, is_inside = 0, verdict = resume(self, PTRACE_SYSCALL, 0);
    while (verdict == 0) {
        verdict = wait_stop(self->tid, self->deadline_ns, &status);
        if (verdict == -ETIMEDOUT)
            return leave(self);
        if (verdict == 0)
            verdict = handle_stop(self, status, at, &is_inside);
        if (verdict == 0)
            verdict = resume(self, PTRACE_SYSCALL, 0);
    }
    return verdict < 0 ? verdict : come_back(self);
}

int sonde_ptrace_call(sonde_ptraced *self, uint64_t function, const uint64_t args[6])
{
    static uint8_t frame[SONDE_FRAME_BYTES] __attribute__((aligned(64)));
    uint64_t at = 0;
    size_t bytes = sonde_frame_make(self, frame, &at);
    if (bytes == 0 || !has_room(self, at))
        return -ENOBUFS;
    int status = sonde_ptrace_write(self, at, frame, bytes);
    if (status < 0)
        return -ENOBUFS; /* the stack has not grown that far */
    status = sonde_call_begin(self, at, function, args);
    return status < 0 ? status : run_call(self, at);
}
