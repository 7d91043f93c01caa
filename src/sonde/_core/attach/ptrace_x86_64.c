/* x86_64: registers, the signal frame, and calls. See ptrace.h. */
#if defined(__x86_64__)
#define _GNU_SOURCE 1
#include "attach/ptrace.h"

#include <cpuid.h>
#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef NT_X86_XSTATE
#define NT_X86_XSTATE 0x202
#endif

/* What the kernel puts into rax of a call that it will restart. */
enum { RESTARTSYS = 512, RESTARTNOINTR = 513, RESTARTNOHAND = 514, RESTARTBLOCK = 516 };

enum {
    XSAVE_SOFTWARE = 464, /* bytes of the XSAVE image that belong to the software */
    XSAVE_LEAST = 576,
    XSAVE_ALIGN = 64,
    MAGIC1 = 0x46505853,
    MAGIC2 = 0x46505845,
    TILES = 18, /* AMX's tiles: a process has to ask for them, which few do */
    LAST_PART = 62,
};

/* As the kernel lays it out. */
typedef struct {
    uint64_t restorer; /* the return address */
    uint64_t flags, link;
    uint64_t stack_sp;
    uint32_t stack_flags, pad;
    uint64_t stack_bytes;
    uint64_t r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip;
    uint64_t eflags;
    uint16_t cs, gs, fs, ss;
    uint64_t err, trap, oldmask, cr2, vectors, reserved[8];
    uint64_t mask;
    uint8_t info[128];
} kernel_frame;

_Static_assert(offsetof(kernel_frame, r8) == 48, "the kernel's layout");
_Static_assert(offsetof(kernel_frame, vectors) == 48 + 184, "the kernel's layout");
_Static_assert(offsetof(kernel_frame, mask) == 48 + 256, "the kernel's layout");

typedef struct {
    uint32_t magic1, extended_bytes;
    uint64_t features;
    uint32_t bytes, pad[7];
} software_part;

_Static_assert(sizeof(software_part) == 48, "the kernel's layout");

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
    registers->vector_kind = NT_X86_XSTATE;
    registers->vector_bytes = sizeof registers->vector;
    if (get_set(tid, NT_X86_XSTATE, registers->vector, &registers->vector_bytes) == 0)
        return 0;
    registers->vector_kind = NT_PRFPREG; /* a machine before XSAVE */
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
    where->pc = general.rip;
    where->sp = general.rsp;
    where->number = (int64_t)general.orig_rax;
    where->result = (int64_t)general.rax;
    where->answer = (int64_t)general.rdx;
    where->second = general.rsi;
    return 0;
}

static int is_endless(const sonde_waiting_place *place)
{
    return (place->number == SYS_epoll_wait || place->number == SYS_epoll_pwait) &&
           (int32_t)place->args[3] == -1;
}

/* Is it in a call that the kernel knows how to continue? */
static int is_at_rest(const sonde_general *now)
{
    return (int64_t)now->orig_rax >= 0 && (int64_t)now->rax == -RESTARTBLOCK;
}

/* The kernel restarts the calls that it can restart when it finds the registers that it left.
 * epoll is not one of them, but a wait without a timeout can simply be restarted. */
void sonde_registers_mend(sonde_registers *registers, const sonde_waiting_place *place)
{
    sonde_general *now = &registers->general;
    if (now->rip == place->pc && (int64_t)now->rax == -EINTR && is_endless(place))
        now->rax = (uint64_t)-RESTARTNOHAND;
    /* A futex waits until a point in time: restarting it changes nothing. */
    if (is_at_rest(now) && now->orig_rax == SYS_futex)
        now->rax = (uint64_t)-RESTARTNOHAND;
}

int sonde_registers_rest(const sonde_registers *registers, const sonde_waiting_place *place)
{
    (void)place;
    return is_at_rest(&registers->general) && registers->general.orig_rax != SYS_futex;
}

int sonde_registers_fit(const sonde_registers *registers, const sonde_waiting_place *place)
{
    const sonde_general *now = &registers->general;
    return now->rsp == place->sp && now->rip == place->pc &&
           (int64_t)now->orig_rax == place->number;
}

static int is_made_again(const sonde_general *was)
{
    int64_t result = -(int64_t)was->rax;
    return (int64_t)was->orig_rax >= 0 && (result == RESTARTSYS || result == RESTARTNOINTR ||
                                           result == RESTARTNOHAND || result == RESTARTBLOCK);
}

/* Return how much of the XSAVE image a signal frame holds: newer kernels look for the second
 * magic word at exactly that place. Registers beyond it need not be preserved across a call. */
static size_t count_vectors(uint64_t *features)
{
    size_t most = XSAVE_LEAST;
    *features &= ~(UINT64_C(1) << TILES);
    for (unsigned part = 2; part <= LAST_PART; part++) {
        unsigned bytes = 0, offset = 0, flags = 0, unused = 0;
        if ((*features >> part & 1) && __get_cpuid_count(0xd, part, &bytes, &offset, &flags, &unused) &&
            offset + bytes > most)
            most = offset + bytes;
    }
    return most;
}

static size_t add_vectors(const sonde_registers *was, uint8_t *to)
{
    software_part part = {.magic1 = MAGIC1};
    uint32_t magic2 = MAGIC2;
    if (was->vector_kind != NT_X86_XSTATE) {
        memcpy(to, was->vector, 512);
        memset(to + XSAVE_SOFTWARE, 0, sizeof part);
        return 512;
    }
    memcpy(&part.features, was->vector + XSAVE_SOFTWARE, sizeof part.features);
    size_t bytes = count_vectors(&part.features);
    if (bytes > was->vector_bytes)
        bytes = was->vector_bytes;
    part.bytes = (uint32_t)bytes;
    part.extended_bytes = (uint32_t)(bytes + sizeof magic2);
    memcpy(to, was->vector, bytes);
    memcpy(to + XSAVE_SOFTWARE, &part, sizeof part);
    memcpy(to + bytes, &magic2, sizeof magic2);
    return bytes + 8;
}

static void copy_general(kernel_frame *frame, const sonde_general *was)
{
    frame->r8 = was->r8, frame->r9 = was->r9, frame->r10 = was->r10, frame->r11 = was->r11;
    frame->r12 = was->r12, frame->r13 = was->r13, frame->r14 = was->r14, frame->r15 = was->r15;
    frame->rdi = was->rdi, frame->rsi = was->rsi, frame->rbp = was->rbp, frame->rbx = was->rbx;
    frame->rdx = was->rdx, frame->rax = was->rax, frame->rcx = was->rcx, frame->rsp = was->rsp;
    frame->rip = was->rip, frame->eflags = was->eflags;
    frame->cs = (uint16_t)was->cs, frame->ss = (uint16_t)was->ss;
    if (is_made_again(was)) {
        frame->rax = was->orig_rax;
        frame->rip -= SONDE_SYSCALL_BYTES;
    }
}

size_t sonde_frame_make(const sonde_ptraced *self, uint8_t *memory, uint64_t *at)
{
    static uint8_t vectors[SONDE_VECTOR_BYTES + 64];
    kernel_frame *frame = (kernel_frame *)memory;
    size_t bytes = add_vectors(&self->was, vectors);
    uint64_t vectors_at =
        (self->was.general.rsp - SONDE_RED_ZONE - bytes) & ~(uint64_t)(XSAVE_ALIGN - 1);
    *at = ((vectors_at - sizeof *frame) & ~UINT64_C(15)) - 8; /* aligned as at a function's start */
    memset(memory, 0, SONDE_FRAME_BYTES);
    frame->restorer = self->restorer;
    /* The vectors are in XSAVE's format, and ss is to be restored. */
    frame->flags = self->was.vector_kind == NT_X86_XSTATE ? 7 : 6;
    frame->stack_flags = 7; /* an invalid value: the signal stack stays as it is */
    frame->mask = self->mask;
    copy_general(frame, &self->was.general);
    frame->vectors = vectors_at;
    memcpy(memory + (vectors_at - *at), vectors, bytes);
    return (vectors_at - *at + bytes + 7) & ~(size_t)7;
}

int sonde_call_begin(const sonde_ptraced *self, uint64_t at, uint64_t function,
                     const uint64_t args[6])
{
    sonde_general general = self->was.general;
    general.rdi = args[0], general.rsi = args[1], general.rdx = args[2];
    general.rcx = args[3], general.r8 = args[4], general.r9 = args[5];
    general.rax = 0;
    general.rbp = 0; /* a stack walk ends here */
    general.orig_rax = (uint64_t)-1; /* no system call to be made again from here */
    general.eflags &= ~UINT64_C(0x500); /* direction up, no single step */
    general.rsp = at;
    general.rip = function;
    return put_set(self->tid, NT_PRSTATUS, &general, sizeof general);
}

int sonde_call_is_over(uint64_t at, const sonde_where *where)
{
    return where->number == SYS_rt_sigreturn && where->sp == at + 8;
}

int sonde_call_skip(pid_t tid)
{
    sonde_general general;
    size_t bytes = sizeof general;
    int status = get_set(tid, NT_PRSTATUS, &general, &bytes);
    if (status < 0)
        return status;
    general.orig_rax = (uint64_t)-1;
    return put_set(tid, NT_PRSTATUS, &general, sizeof general);
}
#else
typedef int sonde_not_this_machine;
#endif
