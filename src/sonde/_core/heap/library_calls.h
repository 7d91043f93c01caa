/* What libraries call in place of the C library's functions, and libc10 in place of its own: see
 * library_slots.h. */
#ifndef SONDE_LIBRARY_CALLS_H
#define SONDE_LIBRARY_CALLS_H

#include <stddef.h>

void *sonde_library_malloc(size_t size);
void *sonde_library_calloc(size_t n, size_t each);
void *sonde_library_realloc(void *block, size_t size);
void *sonde_library_reallocarray(void *block, size_t n, size_t each);
void *sonde_library_aligned_alloc(size_t alignment, size_t size);
void *sonde_library_memalign(size_t alignment, size_t size);
int sonde_library_posix_memalign(void **block, size_t alignment, size_t size);
void sonde_library_free(void *block);

/* Names libc10's own functions, which the two after it call. They may throw. */
void sonde_torch_calls(void *alloc, void *release);
void *sonde_torch_alloc(size_t size);
void sonde_torch_free(void *block);

#endif
