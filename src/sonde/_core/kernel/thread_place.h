/* Where a thread of this process is in its machine code, told by the thread itself.
 *
 * It is sent SIGURG, whose default is to be ignored: one that is still pending when we have gone, or
 * when the thread runs another program, does nothing. Only threads that run are to be asked, never one
 * that waits in the kernel: its call would be interrupted. */
#ifndef SONDE_THREAD_PLACE_H
#define SONDE_THREAD_PLACE_H

#include <stdint.h>

typedef struct {
    uint64_t pc, sp, fp;
    uint64_t link; /* aarch64: where the innermost function returns to, unless it has saved that */
} sonde_thread_place;

/* Read the place at which a signal came from what its handler was given. Safe there. */
void sonde_place_read(const void *signal_context, sonde_thread_place *place);

/* All registers of a thread by the numbers that unwind tables have for them. */
#if defined(__x86_64__)
enum { SONDE_REGISTERS = 17, SONDE_REGISTER_FP = 6, SONDE_REGISTER_SP = 7 };
#else
enum { SONDE_REGISTERS = 32, SONDE_REGISTER_FP = 29, SONDE_REGISTER_SP = 31 };
#endif

typedef struct {
    uint64_t pc;
    uint64_t word[SONDE_REGISTERS];
} sonde_thread_registers;

/* Read them from what the handler of a fault was given. If the fault was passed on by another handler, which
 * runs on a stack of its own, these are the registers at the fault itself. Safe there. */
void sonde_place_read_fault(const void *signal_context, sonde_thread_registers *registers);

/* Begin to handle the signal. Returns 0; -EBUSY if the program handles it itself; or -errno. */
int sonde_place_prepare(void);

/* Is it handled? */
int sonde_place_is_prepared(void);

/* Handle it no longer. */
void sonde_place_rest(void);

/* Ask a thread that runs. Returns 0: it stands still now until sonde_place_let_go(), but for at most a
 * tenth of a millisecond. -EAGAIN: it did not answer within `answer_ns`, and will not. One caller at a time. */
#define SONDE_ANSWER_NS 500000
int sonde_place_ask(uint32_t tid, int64_t answer_ns, sonde_thread_place *place);

/* Let the thread go on. Returns 1 if it has stood still all the time. */
int sonde_place_let_go(void);

#endif
