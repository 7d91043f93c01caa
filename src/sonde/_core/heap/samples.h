/* Sampled allocations: what each stack has allocated and freed, in a file that outlives the process. */
#ifndef SONDE_SAMPLES_H
#define SONDE_SAMPLES_H

#include "heap/own_stack.h" /* first: Python.h wants to be, in front of the system's headers */

#include "heap/blocks.h"

/* Rows as their tables lay them out; tables/heap.py names the columns. */
typedef struct {
    int64_t t_ns;
    uint64_t stack; /* a hash; in the table a signed number */
    uint32_t type;  /* a text id */
    int64_t alive_bytes, alive_blocks, allocated_bytes, allocated_blocks;
} sonde_heap_row;

typedef struct {
    int64_t t_ns, every_bytes;
    uint64_t samples, frees, blocks_lost, stacks_lost, cut;
    int64_t own_ns;
    uint32_t blocks, stacks;
    uint64_t native, native_lost;
} sonde_heap_sampling_row;

#define SONDE_HEAP_KINDS "qqtqqqq"
#define SONDE_HEAP_SAMPLING_KINDS "qqQQQQQqIIQQ"

_Static_assert(sizeof(sonde_heap_row) == 56, "heap_history layout");
_Static_assert(sizeof(sonde_heap_sampling_row) == 88, "heap_sampling layout");

/* In the file, a node's sums are bytes and blocks. Unlike those of time they may shrink: what a stack
 * allocated moves to a node below it as soon as its type is known. */
#define allocated_blocks_of(node) ((node)->samples)
#define allocated_bytes_of(node) ((node)->wall_ns)
#define freed_bytes_of(node) ((node)->cpu_ns)
#define freed_blocks_of(node) ((node)->gil_ns)

enum { SONDE_OBJ, SONDE_MEM, SONDE_RAW, SONDE_DOMAINS }; /* Python's domains; most blocks are objects */

/* What every allocation reads and changes: for an object all of it lies in one line of the cache. */
typedef struct {
    int64_t small_left; /* bytes until the next sample of small blocks; whoever has a GIL counts */
    int64_t large_left; /* the same for all others, which threads without a GIL count as well */
    uint32_t draws;     /* threads that ask for a small block as if it were a larger one */
    const uint8_t *filter; /* see blocks.h */
    PyMemAllocatorEx before[SONDE_DOMAINS]; /* whoever served them before us, and still does */
    uint32_t turn; /* another number whenever threads that count for themselves are to draw anew */
} sonde_heap_counts;

_Static_assert(offsetof(sonde_heap_counts, before[SONDE_OBJ].free) == 64, "one line of the cache");

/* Hidden here as well: otherwise its address would be read from memory each time. */
extern __attribute__((visibility("hidden"))) sonde_heap_counts sonde_heap_now;

typedef struct {
    sonde_stack_home home; /* `nodes` without an index, and `text`; the rest is filled in */
    sonde_ring_handle rows, sampling;
    sonde_control *page;
    int has_types; /* types may be read: that takes a system call */
} sonde_heap_files;

/* Begin, with one sample in so many bytes on average (0: see pace.h). Returns 0 or -errno. With the GIL. */
int sonde_heap_begin(const sonde_heap_files *files, int64_t every_bytes);

/* Was a block drawn since this was last asked? Any thread. */
int sonde_heap_has_drawn(void);

/* Change that number. */
void sonde_heap_every(int64_t every_bytes);

/* Write what has changed, and forget all blocks: from now on nothing is sampled. */
void sonde_heap_end(void);

/* Write what has changed since the last time. */
void sonde_heap_publish(void);

/* Put blocks where they belong whose native functions have become known since. */
void sonde_heap_move_late(void);

/* May this block have been drawn? The hot path of every call that frees. */
static inline int sonde_heap_is_sampled(const void *address)
{
    return sonde_load_relaxed(&sonde_heap_now.filter)[sonde_filter_place((uintptr_t)address)] != 0;
}

/* ---- for the allocators: any thread, with or without the GIL ----------------------------- */

/* The state of the calling thread; NULL: Python does not know it. */
PyThreadState *sonde_heap_thread(void);

/* A block was drawn. `state` is that of the calling thread, or NULL. */
void sonde_heap_add(const void *address, size_t size, PyThreadState *state);

/* Take a block out, which is about to be freed or moved. Returns 1, or 0 if it was never drawn. */
int sonde_heap_take(const void *address, sonde_block *block);

/* It was freed, or moved; or it was neither, and is put back. */
void sonde_heap_freed(const sonde_block *block);
void sonde_heap_put_back(const sonde_block *block);

#endif
