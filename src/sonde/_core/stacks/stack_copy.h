/* What was copied of a stack in one look. */
#ifndef SONDE_COPIES_H
#define SONDE_COPIES_H

#include "stacks/frame_layout.h"

#define MOST_OUTSIDE (2 * SONDE_MAX_DEPTH)
#define MOST_CHUNKS 16
#define MOST_STEPS (SONDE_MAX_DEPTH * 4)

typedef struct {
    uintptr_t low, high; /* the addresses it was copied from; high == low: nothing */
    char *bytes;
} sonde_region;

typedef struct {
    PyThreadState state;
    int is_strict;     /* take the time that it takes to be sure of what came first */
    int64_t begin_ns;  /* when this look began */
    int64_t most_ns;   /* how long it may take up to where it is */
    uintptr_t current; /* the innermost frame */
    sonde_region window;
    sonde_region lower[MOST_CHUNKS];
    int lower_n;
    uintptr_t junction;    /* the lowest frame of the window that was passed */
    raw_frame junction_copy;
    int outside_n;
    int next_outside; /* where the next one is expected */
    uintptr_t outside[MOST_OUTSIDE];
    int level[MOST_OUTSIDE]; /* how far from the innermost; -1: not on the stack */
    raw_frame outside_copy[MOST_OUTSIDE]; /* FRAME_BYTES of each */
} sonde_copies;


/* One thread samples; too large for its stack. */
extern sonde_copies sonde_now;

/* The thread's state, where it is, and the top of its stack. 0; -EFAULT: it is
 * gone; -EINTR: it changed meanwhile. sonde_now.current is 0 if it runs no Python. */
int sonde_copies_top(sonde_view *view);

/* All that lies below the top. 0 or -errno. */
int sonde_copies_rest(sonde_view *view);

/* The copy of a frame, read now if need be; NULL if there is none. `level` is
 * how far it is from the innermost one. */
raw_frame *sonde_copies_find(uintptr_t address, int level);

/* Does the window show this frame? */
int sonde_copies_shows(uintptr_t address);

/* Are the frames that are not on the data stack still as they were, and on the
 * stack? */
int sonde_copies_hold(const sonde_view *view, int must_be_quick);

/* Keep where frames were found that are not on the data stack, for next time. */
void sonde_copies_keep(sonde_view *view);

#endif
