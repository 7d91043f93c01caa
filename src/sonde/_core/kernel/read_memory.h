/* Reading this process's own memory without ever faulting. */
#ifndef SONDE_READ_MEMORY_H
#define SONDE_READ_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Open the file that memory is read through, unless it is open: the program may have closed it.
 * When reading begins, with the GIL, and before each turn of the thread that reads. Returns whether it is open;
 * if it is not, memory is read by a system call that makes later forks of this process slower. */
int sonde_memory_open(void);

/* Close it; with the GIL, when nobody reads any more. */
void sonde_memory_close(void);

/* Never make that call: a filter would end us. */
void sonde_memory_forbid_call(void);

/* Copy `bytes` from an address that may not be mapped (any more). Returns 0, -EFAULT, -EPERM (also
 * if system calls have been filtered since the recording began) or -ENOSYS. Any thread; no lock, no signal. */
int sonde_read_memory(void *to, uintptr_t from, size_t bytes);

typedef struct {
    void *to;
    uintptr_t from;
    size_t bytes;
} sonde_piece;

/* Copy several pieces in this order, at most SONDE_MAX_PIECES. Returns 0 only if all of them were
 * copied. */
#define SONDE_MAX_PIECES 512
int sonde_read_pieces(const sonde_piece *pieces, int pieces_n);

#endif
