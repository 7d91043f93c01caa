/* The functions of C, C++ and Fortran between a sampled allocation and the function of Python below it. */
#ifndef SONDE_NATIVE_STACK_H
#define SONDE_NATIVE_STACK_H

#include "stacks/native_walk.h" /* first: Python.h wants to be, in front of the system's headers */

#include "kernel/thread_place.h"

/* Begin, with a map of the file about machine code. With the GIL, before anything is sampled. Returns 0 or -errno. */
int sonde_native_stack_open(PyObject *file);

/* End. With the GIL, when nothing is sampled any more. */
void sonde_native_stack_close(void);

/* Return where the function that uses this was called: a stack is followed from there on. */
static inline __attribute__((always_inline)) sonde_thread_place sonde_native_stack_begin(void)
{
    return (sonde_thread_place){
        .pc = (uint64_t)__builtin_return_address(0) - 1, /* the call itself */
        .sp = (uint64_t)__builtin_dwarf_cfa(),
        .fp = *(const uint64_t *)__builtin_frame_address(0),
    };
}

/* ---- one thread at a time: whoever holds the heap's lock; nothing here allocates -------------------------------- */

/* A sampled block whose functions were not known in time. */
typedef struct {
    uintptr_t address;
    int64_t bytes;        /* that it stands for: the largest are kept */
    uint32_t stack, node; /* the node of its Python stack; where it counts now: there, or at its type below */
    sonde_frame_key type; /* `func` is 0 if it is not known */
} sonde_late_block;

/* Return the node below `node`, that of the Python stack, at which the calling thread allocates; `node` itself if that
 * is not known (yet). `is_outside`: it runs no Python. Then `is_late` says whether to ask again. */
uint32_t sonde_native_stack_find(sonde_nodes_handle *nodes, const sonde_thread_place *begin, uint32_t node,
                                 int is_outside, int *is_late);

/* Remember the block for which that was found last. */
void sonde_native_stack_keep(const sonde_late_block *block);

/* Note the type of a block that counted at the node `before`, and the node at which it counts for that. An earlier
 * block may have been at the same address, and count elsewhere. */
void sonde_native_stack_type(uintptr_t address, uint32_t before, uint32_t node, const sonde_frame_key *type);

/* Begin to see which functions of late blocks are known by now. Then return the next such block, with the node at which it
 * is to count from now on; 0: there is no other. */
void sonde_native_stack_look(void);
uint32_t sonde_native_stack_next(sonde_nodes_handle *nodes, sonde_late_block *block);

/* Is it time for such a look? Any thread, without the lock. */
int sonde_native_stack_is_due(void);

/* How many samples had their native functions, and how many had not. */
typedef struct {
    uint64_t found, lost;
} sonde_native_stack_sums;

sonde_native_stack_sums sonde_native_stack_count(void);

#endif
