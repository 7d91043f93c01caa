/* A last sample before a signal ends the program: see fatal_signal.h.
 *
 * The handler writes a row, asks the native thread for a sample and waits for it, at most for a
 * quarter of a second. Then it steps aside for good: the kernel raises a fault again as soon as we
 * return, and finds whoever had the signal before us, so that exit status, core file and what
 * faulthandler prints are as without us. SIGBUS is that of map_guard.c, which calls us.
 */
#define _GNU_SOURCE 1
#include "kernel/fatal_signal.h"
#include "format/ordering.h"
#include "kernel/code_range.h"
#include "kernel/filter.h"
#include "kernel/fork.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TAKEN_FROM = 1 /* SIGBUS is not */, NAP_NS = 200000, NAPS = 1250, LOOKS = 4, NO_ADDRESS = 1 };

static const int numbers[SONDE_FATAL_SIGNALS] = {SIGBUS, SIGSEGV, SIGABRT, SIGFPE, SIGILL};
const char *const sonde_fatal_names[SONDE_FATAL_SIGNALS] = {"SIGBUS", "SIGSEGV", "SIGABRT",
                                                            "SIGFPE", "SIGILL"};
static sonde_fatal_watch watches[2]; /* the one that is not in use is written, then named below */
SONDE_CHANGED_IN_CHILD static sonde_fatal_watch *current; /* atomic; NULL: nobody watches */
static struct sigaction before[SONDE_FATAL_SIGNALS];
static sonde_range interpreter_code;
SONDE_CHANGED_IN_CHILD static uint32_t fatal_tid; /* atomic: see sonde_fatal_thread() */
static sonde_thread_place fatal_place; /* written before `fatal_tid` */
SONDE_CHANGED_IN_CHILD static int is_native_awaited; /* atomic */
static uint64_t last_fault; /* atomic: its thread and number */

static int find_place(int number)
{
    int at = 0;
    while (at < SONDE_FATAL_SIGNALS && numbers[at] != number)
        at++;
    return at;
}

/* Is this a fault that we have seen, sent once more by the handler that we passed it on to? faulthandler does so. */
static int is_echo(int number, const siginfo_t *info)
{
    uint64_t who = (uint64_t)syscall(SYS_gettid) << 8 | (uint64_t)number;
    if (info->si_code <= 0)
        return sonde_load_relaxed(&last_fault) == who;
    sonde_store_relaxed(&last_fault, who);
    return 0;
}

static void write_row(sonde_fatal_watch *watch, int number, const siginfo_t *info)
{
    int is_fault = info->si_code > 0; /* others were sent by somebody, and have no address */
    sonde_fatal_row row = {
        .t_ns = sonde_clock_ns(),
        .thread = syscall(SYS_gettid),
        .signal = watch->texts[find_place(number)],
        .address = is_fault ? (uint64_t)(uintptr_t)info->si_addr : 0,
    };
    uint64_t words[sizeof row / 8] = {0};
    memcpy(words, &row, sizeof row);
    (void)sonde_ring_append(&watch->rows, words, is_fault ? 0 : NO_ADDRESS);
}

uint32_t sonde_fatal_thread(sonde_thread_place *place)
{
    uint32_t tid = sonde_load_acquire(&fatal_tid); /* acquire: its place was written before */
    if (tid && place != NULL)
        *place = fatal_place;
    return tid;
}

void sonde_fatal_await_native(int is_awaited) { sonde_store_relaxed(&is_native_awaited, is_awaited); }

/* Have all threads sampled, more than once: a function that was never seen before may be believed only the next
 * time, and what its machine code is called is known only after somebody was asked. */
static void look_often(sonde_fatal_watch *watch)
{
    int naps = 0;
    for (int looks = 0; naps < NAPS && (looks < LOOKS || sonde_load_relaxed(&is_native_awaited)); looks++) {
        uint64_t asked = sonde_increment_ordered(&watch->page->sample_asked);
        sonde_control_ring(watch->page);
        /* Acquire: whoever sees the number sees the sample. */
        do
            nanosleep(&(struct timespec){0, NAP_NS}, NULL);
        while (sonde_load_acquire(&watch->page->sampled) < asked && naps++ < NAPS);
        naps++;
    }
}

void sonde_fatal_look(int number, const siginfo_t *info, const void *context)
{
    /* Acquire: what the pointer names was written before the pointer. */
    sonde_fatal_watch *watch = sonde_load_acquire(&current);
    /* Under a filter the program might die of our calls instead. */
    if (watch == NULL || sonde_had_filter() || is_echo(number, info))
        return;
    write_row(watch, number, info);
    sonde_place_read(context, &fatal_place);
    sonde_store_release(&fatal_tid, (uint32_t)syscall(SYS_gettid)); /* release: its place is written */
    look_often(watch);
    sonde_store_release(&fatal_tid, 0); /* release: nobody reads its place while it is written anew */
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    int kept = errno;
    sonde_fatal_look(number, info, context);
    sigaction(number, &before[find_place(number)], NULL);
    if (info->si_code <= 0) /* it was sent, and is sent again */
        syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), number);
    errno = kept;
}

static int is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_signal;
}

/* Python's other handlers do not end the program; faulthandler's, which does, is the only one with
 * SA_NODEFER. */
int sonde_fatal_ends(const struct sigaction *action)
{
    uintptr_t handler = (uintptr_t)action->sa_handler;
    if (action->sa_flags & SA_SIGINFO)
        return 0;
    return action->sa_handler == SIG_DFL ||
           ((action->sa_flags & SA_NODEFER) && handler >= interpreter_code.begin &&
            handler < interpreter_code.end);
}

int sonde_fatal_catch(const sonde_fatal_watch *watch, const void *interpreter)
{
    sonde_fatal_watch *next = current == &watches[0] ? &watches[1] : &watches[0];
    int others = 0;
    if (sonde_find_object(interpreter, &interpreter_code) < 0)
        interpreter_code = (sonde_range){0, 0};
    *next = *watch;
    /* Release: see sonde_fatal_look(). */
    sonde_store_release(&current, next);
    for (int at = TAKEN_FROM; at < SONDE_FATAL_SIGNALS; at++) {
        struct sigaction now, ours = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        if (sigaction(numbers[at], NULL, &now) < 0 || is_ours(&now))
            continue;
        if (!sonde_fatal_ends(&now)) {
            others++;
            continue;
        }
        before[at] = now;
        sigaction(numbers[at], &ours, NULL);
    }
    return others;
}

void sonde_fatal_release(void)
{
    sonde_store_release(&current, NULL);
    for (int at = TAKEN_FROM; at < SONDE_FATAL_SIGNALS; at++) {
        struct sigaction now;
        /* A handler that was installed after ours stays, and may pass the signal on to us. */
        if (sigaction(numbers[at], NULL, &now) == 0 && is_ours(&now))
            sigaction(numbers[at], &before[at], NULL);
    }
}

/* The page is the parent's. The handler stays, because taking it away takes longer than many a child
 * lives: without a page it steps aside at once. */
static void forget_in_child(void)
{
    SONDE_RESET(current, NULL);
    SONDE_RESET(fatal_tid, 0);
    SONDE_RESET(is_native_awaited, 0);
}

SONDE_IN_CHILD(forget_in_child)
