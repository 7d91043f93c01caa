/* The `with` blocks that a frame is in, and the locks that they hold: read without the GIL. */
#ifndef SONDE_WITH_BLOCKS_H
#define SONDE_WITH_BLOCKS_H

#include "stacks/lock_object.h"

/* Where a thread is inside of a `with` that took a lock. */
typedef struct {
    uintptr_t frame;
    uint32_t func, file; /* text ids */
    int32_t line;        /* of the `with` */
} sonde_with_place;

/* Find the `with` block of the lock among the frames of a thread. Returns 1, or 0 if there is none.
 * The thread may be running: whoever wants to be certain asks twice. Native thread only. */
int sonde_with_find(const sonde_view *view, const sonde_lock *lock, sonde_with_place *place);

/* Find the lock that the innermost frame of a thread is about to take: one among the values that it
 * works with. `word` is what the kernel says that the thread waits for. Returns 1 or 0. Native thread
 * only. */
int sonde_with_wanted(const sonde_view *view, uintptr_t word, sonde_lock *lock);

#endif
