/* Reading this process's own memory without ever faulting. */
#ifndef SONDE_READ_MEMORY_H
#define SONDE_READ_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Copy `bytes` from an address that may not be mapped (any more). 0 or -EFAULT,
 * -EPERM, -ENOSYS. Any thread; no lock, no signal. */
int sonde_read_memory(void *to, uintptr_t from, size_t bytes);

typedef struct {
    void *to;
    uintptr_t from;
    size_t bytes;
} sonde_piece;

/* Copy several pieces in this order; 0 only if all of them were copied. At most
 * SONDE_MAX_PIECES. */
#define SONDE_MAX_PIECES 512
int sonde_read_pieces(const sonde_piece *pieces, int pieces_n);

#endif
