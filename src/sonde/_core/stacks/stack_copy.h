/* What was copied of a stack in one reading. */
#ifndef SONDE_STACK_COPY_H
#define SONDE_STACK_COPY_H

#include "stacks/frame_layout.h"
#include "kernel/read_memory.h"

#define MOST_OUTSIDE (2 * SONDE_MAX_DEPTH)
#define MOST_CHUNKS 16
#define MAX_STEPS (SONDE_MAX_DEPTH * 4)
#define SLOW_PIECE_NS 1500 /* reading one frame outside the data stack takes less */

typedef struct {
    uintptr_t low, high; /* the addresses it was copied from; equal: nothing was copied */
    char *bytes;
} sonde_copied_range;

typedef struct {
    PyThreadState state;
    int is_strict;     /* take the time needed to be certain of the order of changes */
    int64_t begin_ns;  /* when this reading began */
    int64_t limit_ns;  /* how long reading the top may take */
    int64_t most_ns;   /* how long this reading may have taken so far */
    uintptr_t current; /* the innermost frame */
    sonde_copied_range window;
    sonde_copied_range lower[MOST_CHUNKS];
    int lower_n;
    uintptr_t junction;    /* the lowest frame of the window that we came by */
    raw_frame junction_copy;
    int outside_n;
    int next_outside; /* index of the frame that is expected next */
    uintptr_t outside[MOST_OUTSIDE];
    int level[MOST_OUTSIDE]; /* how many frames from the innermost; -1: not on the stack */
    raw_frame outside_copy[MOST_OUTSIDE]; /* FRAME_BYTES of each */
} sonde_stack_copy;

/* Only the native thread uses it, and it is too large for that thread's stack. */
extern sonde_stack_copy sonde_copy;

/* Read the first pieces, then the others. On aarch64 stores become visible in any order,
 * but soon: the half microsecond between two system calls is enough. (membarrier() would be
 * the sure way, but it takes 3 us: time enough to leave frames and come back to them.) */
static inline int read_in_order(const sonde_piece *pieces, int first_n, int pieces_n)
{
    if (!sonde_copy.is_strict)
        return sonde_read_pieces(pieces, pieces_n);
    int status = sonde_read_pieces(pieces, first_n);
    return status < 0 ? status : sonde_read_pieces(pieces + first_n, pieces_n - first_n);
}

/* ---- the data stack (stack_copy.c) --------------------------------------------------- */

/* Copy the thread's state, the address of its innermost frame and the top of its stack.
 * Returns 0; -EFAULT: the thread is gone; -EINTR: it changed meanwhile. sonde_copy.current is 0
 * if the thread runs no Python. */
int sonde_stack_copy_top(sonde_view *view);

/* Copy all that lies below the top. Returns 0, or -EINTR if it changed meanwhile. */
int sonde_stack_copy_rest(const sonde_view *view);

/* Return the copy of a frame, which is read now if need be; NULL if there is none. `level` is
 * how many frames lie between this one and the innermost. */
raw_frame *sonde_stack_copy_find(uintptr_t address, int level);

/* Read what lies in a frame: from the copy, which is of one moment with the frame itself, if it is there; else from
 * memory as it is now. Returns 0 or -errno. */
int sonde_stack_copy_read(void *to, uintptr_t from, size_t bytes);

/* Does the window show this frame? */
int sonde_stack_copy_shows(uintptr_t address);

/* ---- frames outside the data stack (outside_frames.c) ---------------------------------- */

/* Read the frames that were outside the data stack last time, all in one go. */
void sonde_outside_expect(const sonde_view *view);

/* Are the frames outside the data stack still as they were, and still part of the stack? */
int sonde_outside_hold(const sonde_view *view, int must_be_quick);

/* Remember where frames were found outside the data stack, for sonde_outside_expect(). */
void sonde_outside_keep(sonde_view *view);

#endif
