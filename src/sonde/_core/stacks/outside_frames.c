/* Frames that do not lie on the data stack: those of generators, and all of them on 3.10.
 *
 * They are where they were at the last sample more often than not, so they are read in one go
 * from where they were then; any others are read one by one (sonde_stack_copy_find). At the
 * end all of them are read again: they must not have changed.
 */
#include "stacks/stack_copy.h"

#if SONDE_HAS_FRAMES

#include <stdlib.h>

static raw_frame again[SONDE_MAX_DEPTH + 1]; /* FRAME_BYTES of each */

/* Add the frames of last time to what is to be read. Returns how many there are. */
static int add_expected(const sonde_view *view, sonde_piece *pieces)
{
    int n = view->outside_n < SONDE_MAX_PIECES ? view->outside_n : SONDE_MAX_PIECES - 1;
    for (int i = 0; i < n; i++) {
        sonde_copy.outside[i] = view->outside[i];
        sonde_copy.level[i] = -1;
        pieces[i] = (sonde_piece){&sonde_copy.outside_copy[i], view->outside[i], FRAME_BYTES};
    }
    return n;
}

#if PY_VERSION_HEX >= 0x030b0000

void sonde_outside_expect(const sonde_view *view)
{
    static sonde_piece pieces[SONDE_MAX_PIECES];
    sonde_copy.outside_n = sonde_copy.next_outside = 0;
    int n = view->outside_n >= 2 ? add_expected(view, pieces) : 0;
    if (n && sonde_read_pieces(pieces, n) == 0)
        sonde_copy.outside_n = n;
}

/* Has this reading been short enough for the number of pieces that were read again? If not,
 * there was time to leave these frames and come back to them by another way. */
static int is_in_time(int pieces)
{
    int64_t most_ns = sonde_copy.most_ns + sonde_copy.limit_ns / 2 + pieces * (int64_t)SLOW_PIECE_NS;
    return sonde_clock_ns() - sonde_copy.begin_ns < most_ns;
}

#else /* 3.10, which has no data stack */

int sonde_stack_copy_top(sonde_view *view)
{
    /* The state, then the frames it had last time, the innermost first. */
    static sonde_piece pieces[SONDE_MAX_PIECES];
    sonde_copy.outside_n = sonde_copy.next_outside = 0;
    pieces[0] = (sonde_piece){&sonde_copy.state, view->state, sizeof sonde_copy.state};
    int n = add_expected(view, pieces + 1);
    int status = sonde_read_pieces(pieces, n + 1);
    if (status == 0)
        sonde_copy.outside_n = n;
    else
        status = sonde_read_memory(&sonde_copy.state, view->state, sizeof sonde_copy.state);
    sonde_copy.current = status < 0 ? 0 : (uintptr_t)sonde_copy.state.frame;
    return status;
}

int sonde_stack_copy_rest(const sonde_view *view)
{
    (void)view;
    return 0; /* frames are found one by one */
}

void sonde_outside_expect(const sonde_view *view) { (void)view; /* sonde_stack_copy_top() has */ }

static int is_in_time(int pieces) { return pieces >= 0; }

#endif

int sonde_outside_hold(const sonde_view *view, int must_be_quick)
{
    static sonde_piece pieces[SONDE_MAX_PIECES];
    static int place[SONDE_MAX_DEPTH];
    uintptr_t current = sonde_copy.current;
    int n = 0, is_outside = 0;
    for (int i = 0; i < sonde_copy.outside_n && n < SONDE_MAX_PIECES - 1; i++)
        if (sonde_copy.level[i] >= SURE_LEVEL) {
            is_outside |= sonde_copy.level[i] == 0;
            place[n++] = i;
        }
    /* Where the thread is comes first, as in read_lower() of stack_copy.c. */
    pieces[0] = (sonde_piece){&current, find_current_word(view), sizeof current};
    for (int i = 0; i < n; i++)
        pieces[i + 1] = (sonde_piece){&again[i], sonde_copy.outside[place[i]], FRAME_BYTES};
    if (n == 0)
        return 1;
    if (read_in_order(pieces, 1, n + 1) < 0 || (is_outside && current != sonde_copy.current))
        return 0;
    if (must_be_quick && !is_in_time(n))
        return 0;
    for (int i = 0; i < n; i++)
        if (!same_frame(&sonde_copy.outside_copy[place[i]], &again[i],
                        sonde_copy.level[place[i]] <= 2))
            return 0;
    return 1;
}

void sonde_outside_keep(sonde_view *view)
{
    view->outside_n = 0;
    if (sonde_copy.outside_n > view->outside_room) {
        uintptr_t *room = realloc(view->outside, (size_t)sonde_copy.outside_n * sizeof *room);
        if (room == NULL)
            return;
        view->outside = room;
        view->outside_room = sonde_copy.outside_n;
    }
    for (int i = 0; i < sonde_copy.outside_n; i++)
        if (sonde_copy.level[i] >= 0)
            view->outside[view->outside_n++] = sonde_copy.outside[i];
}

#endif
