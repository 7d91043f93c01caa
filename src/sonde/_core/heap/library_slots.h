/* Our functions in front of those with which libraries allocate: of the C library, or libc10's own. */
#ifndef SONDE_LIBRARY_SLOTS_H
#define SONDE_LIBRARY_SLOTS_H

/* Put them into the linkage slots of the libraries that are loaded and have none of ours yet; if `only` is not NULL,
 * into those of the library with this file name alone. Left out are Python itself, whose allocators are watched
 * elsewhere, the C library, libc10, libraries whose calls do not all lead to the C library, and those that are
 * being loaded at this moment. Returns how many slots were taken, or -errno. With the GIL, which it leaves meanwhile. */
int sonde_libraries_take(const char *only);

/* Have libraries been loaded since then? Any thread; takes no lock. */
int sonde_libraries_changed(void);

/* Has another tool put its functions in place of ours? With the GIL, which it leaves meanwhile. */
int sonde_libraries_lost(void);

/* The same for libc10 of PyTorch, which allocates tensors on the CPU with functions of its own. Returns 0;
 * -ENOENT: it does not call both through such slots; or -errno. With the GIL. */
int sonde_torch_tensors_take(const char *path);

/* Take all of them out again; with the GIL, which it leaves meanwhile, and after sonde_heap_end(). */
void sonde_libraries_give_back(void);

#endif
