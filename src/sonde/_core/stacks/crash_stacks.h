/* The native stacks of all threads at a fault that ends the program, as bytes for whoever unwinds them later.
 *
 * Nothing is unwound here: that takes the files of libraries, and time. The file is read, and removed, by a
 * process of the collector's; docs/format.md says how it is laid out. */
#ifndef SONDE_CRASH_STACKS_H
#define SONDE_CRASH_STACKS_H

#include "stacks/threads.h" /* before all others: Python.h must be the first */
#include "kernel/fatal_signal.h"

/* What the sampler needs for them; zeroed: they are not wanted. */
typedef struct {
    int is_wanted;
    int is_ours;       /* the signal by which running threads are asked, which is not handled otherwise */
    int64_t t_ns;      /* of the fault that is being looked at, or was last */
    const sonde_fault *fault; /* NULL: there is none now */
    int fd;            /* of the file, while there is a fault; -1: it cannot be written */
    uint64_t left;     /* bytes that may still be written */
    int64_t patience_ns; /* for the answers of threads that run */
    int is_complete;   /* the threads that run no Python are there, too */
    uint32_t tid;      /* the thread that is held */
    int how;
} sonde_crash_stacks;

/* See whether there is a fault; if one is new, begin a file in this folder. Returns whether stacks are to be
 * written now. Native thread only, as all of these. */
int sonde_crash_begin(sonde_crash_stacks *crash, const char *folder);

/* Is this thread still to be written? */
int sonde_crash_wants(const sonde_crash_stacks *crash, uint32_t tid);

/* Note where a thread is that was not written yet. Returns 1 if it will be there until
 * sonde_crash_release(), or at least if that is known by then. */
int sonde_crash_hold(sonde_crash_stacks *crash, uint32_t tid);

/* May its stack be read for as long as that takes? Yes if it stands in the handler, or waits: `cpu_ns` is its CPU
 * clock, which has not moved if it is asked again later. */
int sonde_crash_is_still(const sonde_crash_stacks *crash, int64_t cpu_ns);

/* Write its stack, unless it went on meanwhile. `stack` is what Python has of it, read since; NULL if that is
 * not known, or is nothing: those threads come last. */
void sonde_crash_release(sonde_crash_stacks *crash, const sonde_stack *stack);

/* Write the stacks of the threads that run no Python: all but the known ones that do, and these, which are our own. */
void sonde_crash_complete(sonde_crash_stacks *crash, const sonde_threads *known, uint32_t own, uint32_t helper);

#endif
