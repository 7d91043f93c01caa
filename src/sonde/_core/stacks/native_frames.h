/* The functions of C, C++ and Fortran below the innermost function of Python. */
#ifndef SONDE_NATIVE_FRAMES_H
#define SONDE_NATIVE_FRAMES_H

#include "stacks/threads.h" /* before all others: Python.h must be the first */
#include "stacks/native_walk.h"

/* What the sampler needs for native frames; `code.table` is NULL if they are not wanted. */
typedef struct {
    sonde_known_code_map code;
    uint64_t found, lost; /* samples of running threads, with and without their native frames */
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
