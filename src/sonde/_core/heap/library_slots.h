/* Our functions in front of the C library's allocator, for the calls of one library. */
#ifndef SONDE_LIBRARY_SLOTS_H
#define SONDE_LIBRARY_SLOTS_H

/* Put them into the linkage slots of a library that is loaded. Returns 0; -ENOENT: it does not call all of
 * malloc, calloc, realloc and free through such slots; or -errno. With the GIL. */
int sonde_library_take(const char *path);

/* Take them out again; with the GIL, after sonde_heap_end(). */
void sonde_library_give_back(void);

#endif
