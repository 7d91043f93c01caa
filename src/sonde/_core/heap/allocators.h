/* Our hooks in Python's allocators. */
#ifndef SONDE_ALLOCATORS_H
#define SONDE_ALLOCATORS_H

#include <stddef.h>

/* Put them in front of the allocators that are there. Returns 0, or -EBUSY if another tool has put
 * one in front of ours that does not let all calls through. With the GIL. */
int sonde_allocators_take(void);

/* Do all allocations still come through our hooks? With the GIL. */
int sonde_allocators_taken(void);

/* What a library calls in place of the C library's functions: see library_slots.h. */
void *sonde_library_malloc(size_t size);
void *sonde_library_calloc(size_t n, size_t each);
void *sonde_library_realloc(void *block, size_t size);
void sonde_library_free(void *block);

/* What libc10 calls in place of its own functions, which sonde_torch_calls() names before that. They may throw. */
void sonde_torch_calls(void *alloc, void *release);
void *sonde_torch_alloc(size_t size);
void sonde_torch_free(void *block);

/* Take those away that nobody has put another in front of; the rest only pass calls on. With the
 * GIL; after sonde_heap_end(). */
void sonde_allocators_give_back(void);

#endif
