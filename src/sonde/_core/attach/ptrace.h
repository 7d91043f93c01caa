/* Have a thread of another process make a call, and leave it as it was.
 *
 * This is the tool's half: nothing here runs in a job, except visitor.c, whose bytes are copied
 * there.
 *
 * A thread is made to call a function as if that were a signal handler: a signal frame lies on
 * its stack, and the function returns into the kernel's own way back, rt_sigreturn. We catch it
 * there and put the registers back by ptrace, so that nothing is left behind. Should the tool die
 * at any moment, the kernel goes that way by itself, and the thread is back where it was.
 */
#ifndef SONDE_PTRACE_H
#define SONDE_PTRACE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#if defined(__x86_64__)
#include <sys/user.h>
typedef struct user_regs_struct sonde_general;
enum { SONDE_SYSCALL_BYTES = 2, SONDE_RED_ZONE = 128 };
#elif defined(__aarch64__)
#include <asm/ptrace.h>
typedef struct user_pt_regs sonde_general;
enum { SONDE_SYSCALL_BYTES = 4, SONDE_RED_ZONE = 0 };
#else
#error "sonde supports x86_64 and aarch64"
#endif

enum { SONDE_VECTOR_BYTES = 16384, SONDE_FRAME_BYTES = 24576, SONDE_MAX_HELD = 64 };

/* Everything a function call may change in a thread. */
typedef struct {
    sonde_general general;
    int vector_kind; /* the NT_ number of the register set */
    size_t vector_bytes;
    uint8_t vector[SONDE_VECTOR_BYTES] __attribute__((aligned(64)));
} sonde_registers;

enum { SONDE_RUNS = -2, SONDE_NOWHERE = -1 };

/* Where /proc says that a thread waits. */
typedef struct {
    int64_t number; /* of the system call, or one of the two below */
    uint64_t args[6], sp, pc;
} sonde_waiting_place;

/* What a stopped thread's registers say. */
typedef struct {
    uint64_t pc, sp;
    int64_t number; /* of the system call, at its beginning and end */
    int64_t result; /* at the end of a system call; otherwise the first word that a function returns */
    int64_t answer; /* the second one */
    uint64_t second; /* the second argument of the system call, at its beginning */
} sonde_where;

/* A thread that we trace. */
typedef struct {
    pid_t pid, tid;
    int64_t deadline_ns;
    uint64_t restorer;   /* where rt_sigreturn is called in the target */
    sonde_waiting_place place;   /* before it was stopped */
    sonde_registers was; /* when it was stopped */
    uint64_t mask;       /* its blocked signals */
    int held[SONDE_MAX_HELD]; /* signals that arrived meanwhile, to be sent again at the end */
    int held_n;
    int64_t result; /* of a call's last system call */
    int64_t answer; /* the second word that a call returned; the first is lost on the way back */
    pid_t made; /* the thread that a call has started, or 0 */
} sonde_ptraced;

/* ---- ptrace.c ------------------------------------------------------------ */

/* Ask /proc where the thread waits, before it is stopped: see `place`. Returns 0, -ESRCH, or
 * another -errno. */
int sonde_ptrace_place(sonde_ptraced *self);

/* Stop a thread, and remember where. Returns 0; -ESRCH: it is gone; -EPERM; -EBUSY: it did not
 * stop in time, and is let go when the tracer ends. */
int sonde_ptrace_stop(sonde_ptraced *self);

/* Have the stopped thread call a function of up to six arguments and stop again; see `result` and
 * `answer`. Returns 0. -ETIMEDOUT: it was not back at the deadline; it is no longer traced and
 * will return by itself. -EFAULT: the function crashed; the thread is stopped again. -ENOBUFS:
 * there is no room on its stack. -EBUSY, -ESRCH: as above. */
int sonde_ptrace_call(sonde_ptraced *self, uint64_t function, const uint64_t args[6]);

/* Put everything back and let the thread go on. */
int sonde_ptrace_release(sonde_ptraced *self);

/* Write to the memory of the stopped thread's process; `bytes` is a multiple of 8. */
int sonde_ptrace_write(const sonde_ptraced *self, uint64_t to, const void *from, size_t bytes);
int sonde_ptrace_read(const sonde_ptraced *self, void *to, uint64_t from, size_t bytes);

/* ---- tracer_process.c ------------------------------------------------------ */

typedef struct {
    int (*work)(void *);
    void *of;
    int status; /* what `work` returned; -EBUSY if it was killed */
    pid_t pid;
    void *stack;
} sonde_tracer;

/* Run `work` in a new process, for whatever traces. All signals are blocked, or it would run our
 * handlers; until it has ended, this thread only waits. Returns 0 or -errno. */
int sonde_tracer_start(sonde_tracer *self, int (*work)(void *), void *of);

/* Wait for its end. Returns what `work` returned. */
int sonde_tracer_wait(sonde_tracer *self);

/* Do both. */
int sonde_tracer_run(int (*work)(void *), void *of);

/* ---- ptrace_x86_64.c, ptrace_aarch64.c ------------------------------------ */

int sonde_registers_save(pid_t tid, sonde_registers *registers);
int sonde_registers_restore(pid_t tid, const sonde_registers *registers);
int sonde_registers_where(pid_t tid, sonde_where *where);

/* Change the registers so that the interrupted system call goes on as if nothing had happened. */
void sonde_registers_mend(sonde_registers *registers, const sonde_waiting_place *place);

/* Is the rest of the interrupted wait known only to the kernel, and in no register? */
int sonde_registers_rest(const sonde_registers *registers, const sonde_waiting_place *place);

/* Do these registers belong to a thread that waited at `place`: still in that system call, or
 * just out of it? */
int sonde_registers_fit(const sonde_registers *registers, const sonde_waiting_place *place);

/* Make a signal frame below `sp` that brings `registers` back. It is written to `frame`, to be
 * copied to `*at` in the target. Returns its size in bytes, a multiple of 8; 0: it does not fit. */
size_t sonde_frame_make(const sonde_ptraced *self, uint8_t *frame, uint64_t *at);

/* Set the registers for a call that returns into that frame. */
int sonde_call_begin(const sonde_ptraced *self, uint64_t at, uint64_t function,
                     const uint64_t args[6]);
int sonde_call_is_over(uint64_t at, const sonde_where *where);
int sonde_call_skip(pid_t tid); /* skip the system call that it is about to make */

/* ---- visitor.c --------------------------------------------------------------- */

/* The functions that the visitor calls, by number; their names are in visit.c. */
enum {
    SONDE_CALL_ERRNO,
    SONDE_CALL_SIGMASK,
    SONDE_CALL_ATTR_INIT,
    SONDE_CALL_ATTR_DETACHED,
    SONDE_CALL_ATTR_STACK,
    SONDE_CALL_CREATE,
    SONDE_CALL_CLOCK,
    SONDE_CALL_MMAP,
    SONDE_CALL_MUNMAP,
    SONDE_CALL_IS_READY,
    SONDE_CALL_ENSURE,
    SONDE_CALL_RELEASE,
    SONDE_CALL_DICT,
    SONDE_CALL_RUN,
    SONDE_CALL_CLEAR,
    SONDE_CALL_DECREF,
    SONDE_CALLS
};

/* What the visitor needs to know; it lies beside the visitor's code. There are two copies: one
 * for the thread that was stopped, and one for the new thread, which frees its own memory while
 * the other thread may still be in its code. */
typedef struct {
    uint64_t page, bytes; /* its own memory, which it frees at the end: see visitor.c */
    uint64_t munmap;
    uint64_t begin;   /* the new thread's sonde_visitor_begin, and its errand */
    uint64_t errand;
    uint64_t source;  /* Python source, ended by a 0 */
    int64_t deadline_ns;
    uint64_t stack_bytes;
    uint64_t every_signal[16]; /* as large as a sigset_t */
    uint64_t calls[SONDE_CALLS];
} sonde_errand;

_Static_assert(offsetof(sonde_errand, bytes) == 8, "visitor.c knows it");
_Static_assert(offsetof(sonde_errand, munmap) == 16, "visitor.c knows it");

/* The visitor's bytes, in a section of their own. */
extern const uint8_t __start_sonde_visitor[], __stop_sonde_visitor[];
typedef struct {
    int64_t ignored, failure; /* an error number, or 0 */
} sonde_visited;
sonde_visited sonde_visitor_visit(const sonde_errand *errand);
void sonde_visitor_begin(const sonde_errand *errand);
void sonde_visitor_work(const sonde_errand *errand);

#endif
