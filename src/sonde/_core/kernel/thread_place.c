/* Where a thread is: see thread_place.h. */
#define _GNU_SOURCE 1
#include "kernel/thread_place.h"
#include "format/format.h"
#include "format/ordering.h"
#include "kernel/fork.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { NUMBER = SIGURG };
enum { STAND_NS = 100000, YIELD_NS = 20000 };

/* FREE → ASKED → TAKEN → STANDS → FREE, or LEFT if nobody let the thread go in time. */
enum { FREE, ASKED, TAKEN, STANDS, LEFT };

SONDE_CHANGED_IN_CHILD static struct {
    uint32_t state;  /* atomic */
    uint32_t sleeps; /* atomic: the sampler has to be woken */
    uint32_t tid; /* atomic: who is asked; a signal that comes late may reach another */
} desk;
static sonde_thread_place answer;
static struct sigaction before;
SONDE_CHANGED_IN_CHILD static int is_ours;

static void forget_in_child(void) { SONDE_RESET(desk.state, FREE); }

SONDE_IN_CHILD(forget_in_child)

static uintptr_t find_sp(const ucontext_t *context)
{
#if defined(__x86_64__)
    return (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
#else
    return (uintptr_t)context->uc_mcontext.sp;
#endif
}

void sonde_place_read(const void *signal_context, sonde_thread_place *place)
{
    const ucontext_t *context = signal_context;
#if defined(__x86_64__)
    const greg_t *words = context->uc_mcontext.gregs;
    *place = (sonde_thread_place){(uint64_t)words[REG_RIP], (uint64_t)words[REG_RSP],
                                  (uint64_t)words[REG_RBP], 0};
#else
    const mcontext_t *words = &context->uc_mcontext;
    *place = (sonde_thread_place){words->pc, words->sp, words->regs[29], words->regs[30]};
#endif
}

/* Find what the kernel saved when the first signal came to a thread that runs on its other stack now: it lies at
 * the far end of that stack, and says, as all of them do, which stack that is. */
static const ucontext_t *find_first(const ucontext_t *last)
{
    enum { MOST = 1 << 20 };
    uintptr_t begin = (uintptr_t)last->uc_stack.ss_sp, size = last->uc_stack.ss_size, sp = find_sp(last);
    if (sp < begin || sp - begin >= size || size > MOST || size < sizeof *last)
        return last;
    uintptr_t at = (begin + size - sizeof *last) & ~(uintptr_t)7;
    for (; at >= sp && at >= begin; at -= 8) {
        const ucontext_t *one = (const ucontext_t *)at;
        if ((uintptr_t)one->uc_stack.ss_sp == begin && one->uc_stack.ss_size == size && find_sp(one) - begin >= size)
            return one;
    }
    return last;
}

void sonde_place_read_fault(const void *signal_context, sonde_thread_registers *registers)
{
    const ucontext_t *context = find_first(signal_context);
#if defined(__x86_64__)
    static const int order[SONDE_REGISTERS] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI,
                                               REG_RBP, REG_RSP, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                               REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};
    for (int i = 0; i < SONDE_REGISTERS; i++)
        registers->word[i] = (uint64_t)context->uc_mcontext.gregs[order[i]];
    registers->pc = (uint64_t)context->uc_mcontext.gregs[REG_RIP];
#else
    for (int i = 0; i < SONDE_REGISTER_SP; i++)
        registers->word[i] = context->uc_mcontext.regs[i];
    registers->word[SONDE_REGISTER_SP] = context->uc_mcontext.sp;
    registers->pc = context->uc_mcontext.pc;
#endif
}

/* Nothing here but memory and the clock: the thread may be anywhere, with any lock. */
static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number;
    int error = errno; /* of the call that the thread has just made */
    uint32_t state = ASKED;
    if (info->si_code != SI_QUEUE || (uint32_t)info->si_value.sival_int != sonde_load_relaxed(&desk.tid))
        return;
    /* Acquire: whoever is asked was named before. */
    if (!sonde_cas_acquire(&desk.state, &state, TAKEN))
        return;
    sonde_place_read(context, &answer);
    /* The answer is complete before it is said to be there. */
    sonde_store_total(&desk.state, STANDS); /* total: see await_answer() */
    if (sonde_load_total(&desk.sleeps))
        (void)syscall(SYS_futex, &desk.state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    int64_t end_ns = sonde_clock_ns() + STAND_NS;
    while (sonde_load_acquire(&desk.state) == STANDS && sonde_clock_ns() < end_ns)
        ; /* acquire: what the sampler reads, it has read before the thread goes on */
    state = STANDS;
    (void)sonde_cas_relaxed(&desk.state, &state, LEFT);
    errno = error;
}

int sonde_place_prepare(void)
{
    if (is_ours)
        return 0;
    if (sigaction(NUMBER, NULL, &before) < 0)
        return -errno;
    if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        return -EBUSY;
    struct sigaction mine = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    if (sigaction(NUMBER, &mine, NULL) < 0)
        return -errno;
    is_ours = 1;
    return 0;
}

int sonde_place_is_prepared(void) { return is_ours; }

void sonde_place_rest(void)
{
    struct sigaction now;
    if (is_ours && sigaction(NUMBER, NULL, &now) == 0 && now.sa_sigaction == on_signal)
        (void)sigaction(NUMBER, &before, NULL);
    is_ours = 0;
}

static int send(uint32_t tid)
{
    siginfo_t info;
    memset(&info, 0, sizeof info);
    info.si_signo = NUMBER;
    info.si_code = SI_QUEUE;
    info.si_pid = getpid();
    info.si_uid = getuid();
    info.si_value.sival_int = (int)tid;
    return (int)syscall(SYS_rt_tgsigqueueinfo, getpid(), tid, NUMBER, &info);
}

static void sleep_for(int64_t left_ns)
{
    struct timespec left = {0, left_ns};
    /* Total: either the thread sees that we sleep, or we see its answer. */
    sonde_store_total(&desk.sleeps, 1);
    (void)syscall(SYS_futex, &desk.state, FUTEX_WAIT_PRIVATE, ASKED, &left, NULL, 0);
    sonde_store_relaxed(&desk.sleeps, 0);
}

/* Wait until the thread has answered; that takes microseconds if it has a processor. */
static int await_answer(int64_t answer_ns)
{
    int64_t begin_ns = sonde_clock_ns(), now_ns = begin_ns;
    while (now_ns - begin_ns < answer_ns) {
        if (sonde_load_acquire(&desk.state) == STANDS) /* acquire: the answer was written before */
            return 1;
        if (now_ns - begin_ns < YIELD_NS)
            sched_yield();
        else
            sleep_for(begin_ns + answer_ns - now_ns);
        now_ns = sonde_clock_ns();
    }
    return sonde_load_acquire(&desk.state) == STANDS;
}

int sonde_place_ask(uint32_t tid, int64_t answer_ns, sonde_thread_place *place)
{
    uint32_t state = sonde_load_acquire(&desk.state);
    if (!is_ours || (state != FREE && state != LEFT))
        return -EAGAIN; /* whoever was asked last is still in the handler */
    sonde_store_relaxed(&desk.tid, tid);
    /* Release: the thread is named before it is asked. */
    sonde_store_release(&desk.state, ASKED);
    if (send(tid) < 0) {
        sonde_store_relaxed(&desk.state, FREE);
        return -EAGAIN;
    }
    if (!await_answer(answer_ns)) {
        state = ASKED;
        (void)sonde_cas_relaxed(&desk.state, &state, FREE);
        return -EAGAIN;
    }
    *place = answer;
    return 0;
}

int sonde_place_let_go(void)
{
    uint32_t state = STANDS;
    /* Release: whatever was read of the thread was read before it goes on. */
    return sonde_cas_release(&desk.state, &state, FREE);
}
