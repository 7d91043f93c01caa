/* What was copied of a stack in one reading. */
#ifndef SONDE_STACK_COPY_H
#define SONDE_STACK_COPY_H

#include "stacks/frame_layout.h"

#define MOST_OUTSIDE (2 * SONDE_MAX_DEPTH)
#define MOST_CHUNKS 16
#define MAX_STEPS (SONDE_MAX_DEPTH * 4)

typedef struct {
    uintptr_t low, high; /* the addresses it was copied from; high == low: nothing */
    char *bytes;
} sonde_copied_range;

typedef struct {
    PyThreadState state;
    int is_strict;     /* take the time that is needed to know what came first */
    int64_t begin_ns;  /* when this reading began */
    int64_t most_ns;   /* how long it may have taken so far */
    uintptr_t current; /* the innermost frame */
    sonde_copied_range window;
    sonde_copied_range lower[MOST_CHUNKS];
    int lower_n;
    uintptr_t junction;    /* the lowest frame of the window that was passed */
    raw_frame junction_copy;
    int outside_n;
    int next_outside; /* where the next one is expected */
    uintptr_t outside[MOST_OUTSIDE];
    int level[MOST_OUTSIDE]; /* how far from the innermost; -1: not on the stack */
    raw_frame outside_copy[MOST_OUTSIDE]; /* FRAME_BYTES of each */
} sonde_stack_copy;


/* Only the native thread uses it, and it is too large for that thread's stack. */
extern sonde_stack_copy sonde_copy;

/* The thread's state, where it is, and the top of its stack. 0; -EFAULT: it is
 * gone; -EINTR: it changed meanwhile. sonde_copy.current is 0 if it runs no Python. */
int sonde_stack_copy_top(sonde_view *view);

/* All that lies below the top. 0 or -errno. */
int sonde_stack_copy_rest(sonde_view *view);

/* The copy of a frame, read now if need be; NULL if there is none. `level` is
 * how far it is from the innermost one. */
raw_frame *sonde_stack_copy_find(uintptr_t address, int level);

/* Does the window show this frame? */
int sonde_stack_copy_shows(uintptr_t address);

/* Are the frames outside the data stack still as they were, and still part of the stack? */
int sonde_stack_copy_hold(const sonde_view *view, int must_be_quick);

/* Keep where frames were found that are not on the data stack, for next time. */
void sonde_stack_copy_keep(sonde_view *view);

#endif
