/* The functions of C, C++ and Fortran below the innermost function of Python. */
#ifndef SONDE_NATIVE_FRAMES_H
#define SONDE_NATIVE_FRAMES_H

#include "stacks/threads.h" /* before all others: Python.h must be the first */
#include "binding/binding.h"
#include "format/machine_code.h"

#define SONDE_NATIVE_DEPTH 128

/* What the sampler needs for native frames. `known` is the sampler's own copy of the table, by address. */
typedef struct {
    sonde_machine_table *table; /* NULL: native frames are not wanted */
    PyObject *map;
    sonde_machine_code *known;
    uint32_t entries;         /* for which there is room in `known`, whatever the file says later */
    uint32_t known_n, read_n; /* pieces of the table that have been copied */
    uint64_t found, lost;     /* samples of running threads, with and without their native frames */
} sonde_native_frames;

/* Begin, with a map of a new file about machine code. Returns 0 or -errno; -EBUSY: the program handles
 * the signal itself. */
int sonde_native_open(sonde_native_frames *native, PyObject *map);
void sonde_native_close(sonde_native_frames *native);

/* Have a thread stand still, if it runs. Returns whether it does. */
int sonde_native_hold(sonde_native_frames *native, sonde_sampled_thread *thread);

/* Copy what is needed of the thread that stands still, and let it go on. Returns whether the stack
 * that was read meanwhile and the copy belong together. */
int sonde_native_release(sonde_native_frames *native);

/* Return the node below `node` at which the thread is that was copied last; `node` itself if its
 * native frames are not known (yet). */
uint32_t sonde_native_extend(sonde_native_frames *native, sonde_nodes_handle *nodes, uint32_t node);

#endif
