/* Our functions in front of those with which a library allocates: of the C library, or its own. */
#ifndef SONDE_LIBRARY_SLOTS_H
#define SONDE_LIBRARY_SLOTS_H

/* Put them into the linkage slots of a library that is loaded, unless it asks Python for its memory. Returns
 * 0; -ENOENT: it does not call all of malloc, calloc, realloc and free through such slots; or -errno. With the
 * GIL. */
int sonde_library_take(const char *path);

/* The same for libc10 of PyTorch, which allocates tensors on the CPU with functions of its own. */
int sonde_torch_tensors_take(const char *path);

/* Take all of them out again; with the GIL, after sonde_heap_end(). */
void sonde_library_give_back(void);

#endif
