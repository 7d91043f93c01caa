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

enum { TAKEN_FROM = 1 /* SIGBUS is not */, NAP_NS = 200000, MOST_NS = 250000000, LOOKS = 4, NO_ADDRESS = 1 };
enum { NOBODY, WRITING, LOOKING }; /* who has `fault` */

static const int numbers[SONDE_FATAL_SIGNALS] = {SIGBUS, SIGSEGV, SIGABRT, SIGFPE, SIGILL};
const char *const sonde_fatal_names[SONDE_FATAL_SIGNALS] = {"SIGBUS", "SIGSEGV", "SIGABRT",
                                                            "SIGFPE", "SIGILL"};
static sonde_fatal_watch watches[2]; /* the one that is not in use is written, then named below */
SONDE_CHANGED_IN_CHILD static sonde_fatal_watch *current; /* atomic; NULL: nobody watches */
static struct sigaction before[SONDE_FATAL_SIGNALS];
SONDE_CHANGED_IN_CHILD static uint32_t taken, lost; /* bits of signals; the second is atomic: see sonde_fatal_renew() */
static pid_t owner; /* who watches: a child by vfork() shares our memory, and has handlers of its own */
static sonde_range interpreter_code;
SONDE_CHANGED_IN_CHILD static uint32_t state; /* atomic: of `fault` */
static sonde_fault fault;
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

const sonde_fault *sonde_fatal_fault(void)
{
    return sonde_load_acquire(&state) == LOOKING ? &fault : NULL; /* acquire: it was written before */
}

static void nap(void) { nanosleep(&(struct timespec){0, NAP_NS}, NULL); }

/* Have all threads sampled, more than once: a function that was never seen before may be believed only the next
 * time. By the clock: on a busy machine a nap may take twenty times as long as it should. */
static void look_often(sonde_fatal_watch *watch, int64_t end_ns)
{
    for (int looks = 0; looks < LOOKS && sonde_clock_ns() < end_ns; looks++) {
        uint64_t asked = sonde_increment_ordered(&watch->page->sample_asked);
        sonde_control_ring(watch->page);
        /* Acquire: whoever sees the number sees the sample. */
        do
            nap();
        while (sonde_load_acquire(&watch->page->sampled) < asked && sonde_clock_ns() < end_ns);
    }
}

/* Wait until the fault of another thread was looked at: the program would end meanwhile if we went on. */
static void await_other(int64_t end_ns)
{
    while (sonde_load_relaxed(&state) != NOBODY && sonde_clock_ns() < end_ns)
        nap();
}

void sonde_fatal_look(int number, const siginfo_t *info, const void *context)
{
    /* Acquire: what the pointer names was written before the pointer. */
    sonde_fatal_watch *watch = sonde_load_acquire(&current);
    /* Under a filter the program might die of our calls instead. */
    if (watch == NULL || sonde_had_filter() || getpid() != owner || is_echo(number, info))
        return;
    int64_t end_ns = sonde_clock_ns() + MOST_NS;
    write_row(watch, number, info);
    uint32_t nobody = NOBODY;
    if (!sonde_cas_relaxed(&state, &nobody, WRITING)) {
        await_other(end_ns);
        return;
    }
    fault.t_ns = sonde_clock_ns();
    fault.tid = (uint32_t)syscall(SYS_gettid);
    sonde_place_read_fault(context, &fault.at);
    sonde_store_release(&state, LOOKING); /* release: the fault is written */
    look_often(watch, end_ns);
    sonde_store_relaxed(&state, NOBODY);
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

/* Take a signal that has this handler. */
static void take(int at, const struct sigaction *now)
{
    struct sigaction was, ours = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    before[at] = *now;
    sigaction(numbers[at], &ours, &was);
    if (was.sa_sigaction != now->sa_sigaction) /* the program has installed another one meanwhile */
        sigaction(numbers[at], &was, NULL);
}

int sonde_fatal_catch(const sonde_fatal_watch *watch, const void *interpreter)
{
    sonde_fatal_watch *next = current == &watches[0] ? &watches[1] : &watches[0];
    int others = 0;
    if (sonde_find_object(interpreter, &interpreter_code) < 0)
        interpreter_code = (sonde_range){0, 0};
    *next = *watch;
    owner = getpid();
    taken = 0;
    sonde_store_relaxed(&lost, 0);
    /* Release: see sonde_fatal_look(). */
    sonde_store_release(&current, next);
    for (int at = TAKEN_FROM; at < SONDE_FATAL_SIGNALS; at++) {
        struct sigaction now;
        if (sigaction(numbers[at], NULL, &now) < 0)
            continue;
        if (!is_ours(&now) && !sonde_fatal_ends(&now)) {
            others++;
            continue;
        }
        taken |= 1u << at;
        if (!is_ours(&now))
            take(at, &now);
    }
    return others;
}

void sonde_fatal_renew(int bus_ends)
{
    uint32_t found = bus_ends ? 0 : taken & 1;
    taken |= bus_ends != 0;
    if (sonde_load_relaxed(&current) == NULL || sonde_load_relaxed(&state) != NOBODY)
        return;
    for (int at = TAKEN_FROM; at < SONDE_FATAL_SIGNALS; at++) {
        struct sigaction now;
        if (!(taken & 1u << at) || sigaction(numbers[at], NULL, &now) < 0 || is_ours(&now))
            continue;
        if (!(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL)
            take(at, &now);
        else if (!sonde_fatal_ends(&now)) /* faulthandler passes it on */
            found |= 1u << at;
    }
    sonde_store_relaxed(&lost, sonde_load_relaxed(&lost) | found);
}

uint32_t sonde_fatal_lost(void) { return sonde_load_relaxed(&lost); }

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
    SONDE_RESET(state, NOBODY);
    SONDE_RESET(lost, 0);
}

SONDE_IN_CHILD(forget_in_child)
