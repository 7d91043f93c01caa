/* Threads that wait for a lock: which one it is, who holds it, and where that thread took it. */
#ifndef SONDE_LOCK_WAITS_H
#define SONDE_LOCK_WAITS_H

#include <stdint.h>

/* A row as its table lays it out; tables/stack.py names the columns. */
typedef struct {
    int64_t t_ns, thread, since_ns;
    uint64_t lock;
    uint32_t kind; /* a text id */
    int64_t holder;
    uint64_t holder_stack;
    uint32_t taken_func, taken_file; /* text ids */
    int64_t taken_line;
} sonde_lock_row;

#define SONDE_LOCK_KINDS "qqqQtqqttq"

_Static_assert(sizeof(sonde_lock_row) == 72, "lock_wait layout");

#endif
