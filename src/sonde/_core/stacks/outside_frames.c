/* Frames that do not lie on the data stack: those of generators, and all of them on 3.10.
 *
 * They are where they were at the last sample more often than not, so they are read together
 * from where they were then; any others are read one by one (sonde_stack_copy_find). At the
 * end all of them are read again: they must not have changed.
 *
 * Python's allocator puts frames of one size side by side: of sixty frames about five lie in each block
 * of 4 KiB, and what lies between the first and the last of them is read with them, in one system call.
 */
#include "stacks/stack_copy.h"

#if SONDE_HAS_FRAMES

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 4096, CHAINS = 128 };

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

/* ---- frames of one block, read together ---------------------------------------------- */

typedef struct {
    int first[CHAINS];           /* index of the first piece of each chain; -1: none */
    int next[SONDE_MAX_PIECES];  /* index of the next one in the same chain; -1: none */
    int is_read[SONDE_MAX_PIECES];
} piece_chains;

static uintptr_t block_of(const sonde_piece *piece) { return piece->from / BLOCK_BYTES; }

/* Each piece is followed by later ones only. */
static void chain(piece_chains *chains, const sonde_piece *pieces, int n)
{
    memset(chains->first, -1, sizeof chains->first);
    for (int i = n - 1; i >= 0; i--) {
        int *first = &chains->first[block_of(&pieces[i]) % CHAINS];
        chains->next[i] = *first;
        chains->is_read[i] = 0;
        *first = i;
    }
}

/* Read all pieces that begin in the block of this one. Returns 0 or -errno. */
static int read_block(piece_chains *chains, const sonde_piece *pieces, int at)
{
    static _Alignas(8) char bytes[BLOCK_BYTES + FRAME_BYTES];
    uintptr_t block = block_of(&pieces[at]), low = pieces[at].from, high = low;
    int n = 0;
    for (int i = at; i >= 0; i = chains->next[i])
        if (block_of(&pieces[i]) == block) {
            low = pieces[i].from < low ? pieces[i].from : low;
            high = pieces[i].from > high ? pieces[i].from : high;
            n++;
        }
    if (n == 1)
        return sonde_read_memory(pieces[at].to, low, FRAME_BYTES);
    int status = sonde_read_memory(bytes, low, high - low + FRAME_BYTES);
    if (status < 0)
        return status;
    for (int i = at; i >= 0; i = chains->next[i])
        if (block_of(&pieces[i]) == block) {
            memcpy(pieces[i].to, bytes + (pieces[i].from - low), FRAME_BYTES);
            chains->is_read[i] = 1;
        }
    return 0;
}

/* Read frames, in any order. Returns 0 or -errno. */
static int read_frames(const sonde_piece *pieces, int n)
{
    static piece_chains chains;
    int status = 0;
    chain(&chains, pieces, n);
    for (int i = 0; i < n && status == 0; i++)
        if (!chains.is_read[i])
            status = read_block(&chains, pieces, i);
    return status;
}

/* ---- expecting, and looking again ------------------------------------------------------ */

#if PY_VERSION_HEX >= 0x030b0000

void sonde_outside_expect(const sonde_view *view)
{
    static sonde_piece pieces[SONDE_MAX_PIECES];
    sonde_copy.outside_n = sonde_copy.next_outside = 0;
    int n = view->outside_n >= 2 ? add_expected(view, pieces) : 0;
    if (n && read_frames(pieces, n) == 0)
        sonde_copy.outside_n = n;
}

/* Has this reading been short enough for the number of frames that were read again? If not,
 * there was time to leave these frames and come back to them by another way. */
static int is_in_time(int frames)
{
    int64_t most_ns = sonde_copy.most_ns + sonde_copy.limit_ns / 2 + frames * (int64_t)SLOW_PIECE_NS;
    return sonde_clock_ns() - sonde_copy.begin_ns < most_ns;
}

#else /* 3.10, which has no data stack */

int sonde_stack_copy_top(sonde_view *view)
{
    /* The state, then the frames it had last time. */
    static sonde_piece pieces[SONDE_MAX_PIECES];
    int status = sonde_read_memory(&sonde_copy.state, view->state, sizeof sonde_copy.state);
    int n = status < 0 ? 0 : add_expected(view, pieces);
    sonde_copy.next_outside = 0;
    sonde_copy.outside_n = read_frames(pieces, n) < 0 ? 0 : n;
    sonde_copy.current = status < 0 ? 0 : (uintptr_t)sonde_copy.state.frame;
    return status;
}

int sonde_stack_copy_rest(const sonde_view *view)
{
    (void)view;
    return 0; /* frames are found one by one */
}

void sonde_outside_expect(const sonde_view *view) { (void)view; /* sonde_stack_copy_top() has */ }

static int is_in_time(int frames) { return frames >= 0; }

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
    if (n == 0)
        return 1;
    for (int i = 0; i < n; i++)
        pieces[i] = (sonde_piece){&again[i], sonde_copy.outside[place[i]], FRAME_BYTES};
    if (sonde_read_memory(&current, find_current_word(view), sizeof current) < 0)
        return 0;
    if (read_frames(pieces, n) < 0 || (is_outside && current != sonde_copy.current))
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
