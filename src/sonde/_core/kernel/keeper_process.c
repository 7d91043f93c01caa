/* What the keeper does in its own process; keeper.h says what it is for.
 *
 * After forget_memory() the C library is gone: what runs then makes raw system calls, and the
 * compiler must not make calls of its own. */
#define _GNU_SOURCE 1
#include "kernel/keeper_process.h"
#include "format/ordering.h"
#include "kernel/raw_call.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* No canary, no sanitizer: both need memory that is gone. */
#if defined(__has_attribute)
#if __has_attribute(no_stack_protector)
#define WITHOUT_CANARY __attribute__((no_stack_protector))
#endif
#endif
#ifndef WITHOUT_CANARY
#define WITHOUT_CANARY __attribute__((optimize("no-stack-protector")))
#endif
#define BARE WITHOUT_CANARY __attribute__((noinline, no_sanitize("address"), no_sanitize("undefined")))

/* A keeper without children ends when the recording was silent for so long: the job has become
 * another program. */
#define SILENCE_S 60

BARE static void leave(int status)
{
    for (;;)
        sonde_raw_call(SYS_exit_group, status, 0, 0, 0, 0);
}

BARE static void close_files(long first, long last)
{
    if (first > last)
        return;
#ifdef SYS_close_range
    if (sonde_raw_call(SYS_close_range, first, last, 0, 0, 0) == 0)
        return;
#endif
    for (long fd = first; fd <= last && fd < 65536; fd++)
        sonde_raw_call(SYS_close, fd, 0, 0, 0, 0);
}

BARE static void put_file(long fd, long where)
{
    if (fd != where)
        sonde_raw_call(SYS_dup3, fd, where, 0, 0, 0);
}

/* In the keeper's child: become the command. */
BARE static void become(const sonde_keeper_plan *self, int command)
{
    uint64_t none = 0;
    long line = self->line < 0 ? -1 : sonde_raw_call(SYS_fcntl, self->line, F_DUPFD, 3, 0, 0);
    long null = sonde_raw_call(SYS_openat, AT_FDCWD, (long)"/dev/null", O_RDWR, 0, 0);
    if (null >= 0 && (self->line < 0 || line >= 0)) {
        null = sonde_raw_call(SYS_fcntl, null, F_DUPFD, 3, 0, 0);
        put_file(line < 0 ? null : line, 0);
        put_file(line < 0 ? null : line, 1);
        put_file(null, 2);
        close_files(3, ~0u);
        sonde_raw_call(SYS_setsid, 0, 0, 0, 0, 0);
        sonde_raw_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof none, 0);
        sonde_raw_call(SYS_execve, (long)self->commands[command][0], (long)self->commands[command],
                       (long)self->envp, 0, 0);
    }
    leave(127);
}

BARE static void begin(const sonde_keeper_plan *self, int command)
{
    if (self->commands[command] == NULL)
        return;
    if (sonde_raw_call(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0)
        become(self, command);
}

/* Returns whether there are children left. */
BARE static int reap(void)
{
    long pid;
    do
        pid = sonde_raw_call(SYS_wait4, -1, 0, WNOHANG, 0, 0);
    while (pid > 0);
    return pid == 0;
}

BARE static void serve(const sonde_keeper_plan *self)
{
    const uint64_t ours = (uint64_t)1 << (SIGCHLD - 1) | (uint64_t)1 << (SIGUSR1 - 1) |
                          (uint64_t)1 << (SIGUSR2 - 1) | (uint64_t)1 << (SIGHUP - 1) |
                          (uint64_t)1 << (SIGTERM - 1);
    const struct timespec pause = {.tv_sec = SILENCE_S};
    int is_last = self->beats == NULL;
    uint64_t beats = 0;
    if (is_last) {
        begin(self, 0);
        close_files(0, ~0u); /* the line is the command's now */
    }
    for (;;) {
        /* The children are looked at before the wait: one may have ended, and its signal been
         * taken together with another's. */
        int has_children = reap();
        if ((is_last && !has_children) || sonde_raw_call(SYS_getppid, 0, 0, 0, 0, 0) != self->job)
            leave(0);
        long sent = sonde_raw_call(SYS_rt_sigtimedwait, (long)&ours, 0, (long)&pause, sizeof ours, 0);
        if (sent == SIGUSR1 || sent == SIGUSR2)
            begin(self, sent == SIGUSR1 ? SONDE_COLLECTOR : SONDE_SNAPSHOT);
        is_last |= sent == SIGTERM;
        if (sent == -EAGAIN && self->beats != NULL) {
            uint64_t now = sonde_load_relaxed(self->beats);
            is_last |= now == beats;
            beats = now;
        }
    }
}

BARE static void forget_memory(const sonde_keeper_plan *self)
{
    uintptr_t from = 0;
    for (int i = 0; i < SONDE_RANGES_N; i++) {
        if (self->kept[i].begin > from)
            sonde_raw_call(SYS_munmap, (long)from, (long)(self->kept[i].begin - from), 0, 0, 0);
        from = self->kept[i].end;
    }
    /* User space is 47, 48 or 39 bits large, less a page on some machines. */
    for (int bits = 48; bits >= 39; bits--)
        if (sonde_raw_call(SYS_munmap, (long)from, (long)(((uintptr_t)1 << bits) - self->page - from), 0,
                           0, 0) == 0)
            return;
}

BARE int sonde_keeper_main(void *arg)
{
    const sonde_keeper_plan *self = arg;
    struct sigaction fresh = {.sa_handler = SIG_DFL};
    prctl(PR_SET_NAME, SONDE_KEEPER_NAME, 0, 0, 0);
    close_files(0, self->line < 0 ? ~0u : (long)self->line - 1);
    if (self->line >= 0)
        close_files((long)self->line + 1, ~0u);
    setsid();
    if (chdir("/") < 0) {
        /* On failure it stays in the job's folder, which only keeps that folder busy. */
    }
    /* All signals stay blocked: the kernel may send them, and serve() takes those it knows. */
    for (int sig = 1; sig < NSIG; sig++)
        sigaction(sig, &fresh, NULL);
    /* It comes when the thread that made us ends: then the job has ended, or goes on without
     * that thread. */
    prctl(PR_SET_PDEATHSIG, SIGHUP, 0, 0, 0);
    forget_memory(self);
    serve(self);
    return 0;
}
