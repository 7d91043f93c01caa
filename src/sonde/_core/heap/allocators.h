/* Our hooks in Python's allocators. */
#ifndef SONDE_ALLOCATORS_H
#define SONDE_ALLOCATORS_H

/* Put them in front of the allocators that are there. Returns 0, or -EBUSY if another tool has put
 * one in front of ours that does not let all calls through. With the GIL. */
int sonde_allocators_take(void);

/* Do all allocations still come through our hooks? With the GIL. */
int sonde_allocators_taken(void);

/* Take those away that nobody has put another in front of; the rest only pass calls on. With the
 * GIL; after sonde_heap_end(). */
void sonde_allocators_give_back(void);

#endif
