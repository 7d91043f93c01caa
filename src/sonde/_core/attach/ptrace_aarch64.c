/* aarch64: registers, the signal frame, and calls. See ptrace.h. */
#if defined(__aarch64__)
#define _GNU_SOURCE 1
#include "attach/ptrace.h"

#include <asm/sigcontext.h>
#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#ifndef NT_ARM_SYSTEM_CALL
#define NT_ARM_SYSTEM_CALL 0x404
#endif
#ifndef NT_ARM_SVE
#define NT_ARM_SVE 0x405
#endif

/* As the kernel lays it out; the records of the vector registers follow in `records`. */
typedef struct {
    uint8_t info[128];
    uint64_t flags, link;
    uint64_t stack_sp;
    uint32_t stack_flags, pad;
    uint64_t stack_bytes;
    uint64_t mask, unused[15];
    uint64_t fault __attribute__((aligned(16))), regs[31], sp, pc, pstate;
    uint8_t records[4096] __attribute__((aligned(16)));
} kernel_frame;

_Static_assert(offsetof(kernel_frame, mask) == 128 + 40, "the kernel's layout");
_Static_assert(offsetof(kernel_frame, fault) == 128 + 176, "the kernel's layout");
_Static_assert(offsetof(kernel_frame, records) == 128 + 176 + 288, "the kernel's layout");
_Static_assert(sizeof(kernel_frame) <= SONDE_FRAME_BYTES, "room");

static int get_set(pid_t tid, int kind, void *to, size_t *bytes)
{
    struct iovec vector = {to, *bytes};
    if (ptrace(PTRACE_GETREGSET, tid, (void *)(intptr_t)kind, &vector) < 0)
        return -errno;
    *bytes = vector.iov_len;
    return 0;
}

static int put_set(pid_t tid, int kind, const void *from, size_t bytes)
{
    struct iovec vector = {(void *)from, bytes};
    return ptrace(PTRACE_SETREGSET, tid, (void *)(intptr_t)kind, &vector) < 0 ? -errno : 0;
}

int sonde_registers_save(pid_t tid, sonde_registers *registers)
{
    size_t bytes = sizeof registers->general;
    int status = get_set(tid, NT_PRSTATUS, &registers->general, &bytes);
    if (status < 0)
        return status;
    registers->vector_kind = NT_ARM_SVE; /* this set includes the others */
    registers->vector_bytes = sizeof registers->vector;
    if (get_set(tid, NT_ARM_SVE, registers->vector, &registers->vector_bytes) == 0)
        return 0;
    registers->vector_kind = NT_PRFPREG;
    registers->vector_bytes = sizeof registers->vector;
    return get_set(tid, NT_PRFPREG, registers->vector, &registers->vector_bytes);
}

int sonde_registers_restore(pid_t tid, const sonde_registers *registers)
{
    int status = put_set(tid, registers->vector_kind, registers->vector, registers->vector_bytes);
    int general = put_set(tid, NT_PRSTATUS, &registers->general, sizeof registers->general);
    return status < 0 ? status : general;
}

int sonde_registers_where(pid_t tid, sonde_where *where)
{
    sonde_general general;
    size_t bytes = sizeof general;
    int status = get_set(tid, NT_PRSTATUS, &general, &bytes);
    if (status < 0)
        return status;
    where->pc = general.pc;
    where->sp = general.sp;
    where->number = (int64_t)(int32_t)general.regs[8];
    where->result = (int64_t)general.regs[0];
    where->answer = (int64_t)general.regs[1];
    where->second = general.regs[1];
    return 0;
}

static int is_endless(const sonde_waiting_place *place)
{
    return place->number == SYS_epoll_pwait && (int32_t)place->args[3] == -1;
}

int sonde_registers_rest(const sonde_registers *registers, const sonde_waiting_place *place)
{
    int is_relative =
        place->number == SYS_nanosleep ||
        (place->number == SYS_clock_nanosleep && !(place->args[1] & TIMER_ABSTIME));
    return is_relative && registers->general.pc == place->pc - SONDE_SYSCALL_BYTES;
}

/* The kernel has moved pc back to the `svc` where the call is made again. It no longer knows that
 * a sleep was in progress: only restart_syscall does. */
void sonde_registers_mend(sonde_registers *registers, const sonde_waiting_place *place)
{
    sonde_general *now = &registers->general;
    if (sonde_registers_rest(registers, place))
        now->regs[8] = SYS_restart_syscall;
    /* The kernel does not restart epoll; a wait without a timeout can simply be restarted. */
    if (now->pc == place->pc && (int64_t)now->regs[0] == -EINTR && is_endless(place)) {
        now->regs[0] = place->args[0];
        now->pc -= SONDE_SYSCALL_BYTES;
    }
}

int sonde_registers_fit(const sonde_registers *registers, const sonde_waiting_place *place)
{
    const sonde_general *now = &registers->general;
    return now->sp == place->sp && (int64_t)now->regs[8] == place->number &&
           (now->pc == place->pc || now->pc == place->pc - SONDE_SYSCALL_BYTES);
}

/* Add the vector registers that every function may use as a record. Larger ones (SVE) need not be
 * preserved across a call. */
static int add_vectors(kernel_frame *frame, pid_t tid)
{
    struct fpsimd_context context = {.head = {FPSIMD_MAGIC, sizeof context}};
    struct user_fpsimd_state state;
    size_t bytes = sizeof state;
    int status = get_set(tid, NT_PRFPREG, &state, &bytes);
    if (status < 0)
        return status;
    context.fpsr = state.fpsr;
    context.fpcr = state.fpcr;
    memcpy(context.vregs, state.vregs, sizeof context.vregs);
    memcpy(frame->records, &context, sizeof context); /* zeros after it end the records */
    return 0;
}

size_t sonde_frame_make(const sonde_ptraced *self, uint8_t *memory, uint64_t *at)
{
    const sonde_general *was = &self->was.general;
    kernel_frame *frame = (kernel_frame *)memory;
    memset(frame, 0, sizeof *frame);
    frame->stack_flags = 7; /* an invalid value: the signal stack stays as it is */
    frame->mask = self->mask;
    memcpy(frame->regs, was->regs, sizeof frame->regs);
    frame->sp = was->sp;
    frame->pc = was->pc;
    frame->pstate = was->pstate;
    /* This way a sleep starts from the beginning: sigreturn forgets how much of it is left. */
    if (was->pc == self->place.pc - SONDE_SYSCALL_BYTES && self->place.number >= 0)
        frame->regs[8] = (uint64_t)self->place.number;
    if (add_vectors(frame, self->tid) < 0)
        return 0;
    *at = (was->sp - SONDE_RED_ZONE - sizeof *frame) & ~UINT64_C(15);
    return sizeof *frame;
}

int sonde_call_begin(const sonde_ptraced *self, uint64_t at, uint64_t function,
                     const uint64_t args[6])
{
    sonde_general general = self->was.general;
    memcpy(general.regs, args, 6 * sizeof args[0]);
    general.regs[29] = 0; /* a stack walk ends here */
    general.regs[30] = self->restorer;
    general.sp = at;
    general.pc = function;
    general.pstate &= ~UINT64_C(0xc00); /* BTYPE: no branch is in progress */
    return put_set(self->tid, NT_PRSTATUS, &general, sizeof general);
}

int sonde_call_is_over(uint64_t at, const sonde_where *where)
{
    return where->number == SYS_rt_sigreturn && where->sp == at;
}

int sonde_call_skip(pid_t tid)
{
    int none = -1;
    return put_set(tid, NT_ARM_SYSTEM_CALL, &none, sizeof none);
}
#else
typedef int sonde_not_this_machine;
#endif
