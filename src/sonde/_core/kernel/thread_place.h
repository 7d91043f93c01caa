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

/* Begin to handle the signal. Returns 0; -EBUSY if the program handles it itself; or -errno. */
int sonde_place_prepare(void);

/* Handle it no longer. */
void sonde_place_rest(void);

/* Ask a thread that runs. Returns 0: it stands still now until sonde_place_let_go(), but for at most a
 * tenth of a millisecond. -EAGAIN: it did not answer in time, and will not. One caller at a time. */
int sonde_place_ask(uint32_t tid, sonde_thread_place *place);

/* Let the thread go on. Returns 1 if it has stood still all the time. */
int sonde_place_let_go(void);

#endif
