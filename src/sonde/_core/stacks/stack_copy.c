/* Copies of a stack that its thread goes on using.
 *
 * From 3.11 on a thread's frames lie one after the other on its data stack. The top of it, where
 * things change, is copied twice in one short read, and between the two copies the same read asks
 * where the thread is. What lies below cannot change while the lowest frame of that copy is
 * alive, so it is copied afterwards, then that frame is read once more, then what lies below, then
 * that frame again: a thread that left all these frames and came back by another way is found out,
 * unless it did so twice, at the right moments. Frames elsewhere are read one by one and then read
 * again: see outside_frames.c. If a read took too long, or anything does not fit, the stack is torn:
 * we try again a few times, then give up and count it.
 */
#include "stacks/stack_copy.h"
#include "kernel/read_memory.h"
#include "stacks/reading_time.h"

#if SONDE_HAS_FRAMES

#include <errno.h>
#include <string.h>

/* What lies below the top may take this much longer to read: see reading_time.c. */
#define SLOW_BYTES_PER_NS 2
#define SLOW_CHUNK_NS 1500
#define WINDOW_BELOW 1536
#define WINDOW_ABOVE 256
#define LOWER_BYTES (96 * 1024)

sonde_stack_copy sonde_copy;
#if PY_VERSION_HEX >= 0x030b0000
static uintptr_t current_after; /* the innermost frame after the second copy of the window */
static _Alignas(8) char first_bytes[WINDOW_BELOW + WINDOW_ABOVE + FRAME_BYTES];
static _Alignas(8) char window_bytes[sizeof first_bytes];
static _Alignas(8) char lower_bytes[LOWER_BYTES];
static _Alignas(8) char lower_again[LOWER_BYTES];
#endif

static int is_inside(const sonde_copied_range *region, uintptr_t address)
{
    return address >= region->low && address < region->high &&
           region->high - address >= FRAME_BYTES;
}

int sonde_stack_copy_shows(uintptr_t address) { return is_inside(&sonde_copy.window, address); }

int sonde_stack_copy_read(void *to, uintptr_t from, size_t bytes)
{
    const sonde_copied_range *window = &sonde_copy.window;
    if (from < window->low || from >= window->high || window->high - from < bytes)
        return sonde_read_memory(to, from, bytes);
    memcpy(to, window->bytes + (from - window->low), bytes);
    return 0;
}

static raw_frame *read_outside(uintptr_t address, int level)
{
    for (int i = 0; i < sonde_copy.outside_n; i++) {
        int at = (sonde_copy.next_outside + i) % sonde_copy.outside_n;
        if (sonde_copy.outside[at] == address) {
            if (sonde_copy.level[at] >= 0 && sonde_copy.level[at] != level)
                return NULL; /* a stack has no circles */
            sonde_copy.next_outside = at + 1;
            sonde_copy.level[at] = level;
            return &sonde_copy.outside_copy[at];
        }
    }
    if (sonde_copy.outside_n == MOST_OUTSIDE)
        return NULL;
    int at = sonde_copy.outside_n;
    if (sonde_read_memory(&sonde_copy.outside_copy[at], address, FRAME_BYTES) < 0)
        return NULL;
    sonde_copy.outside[at] = address;
    sonde_copy.level[at] = level;
    sonde_copy.outside_n = at + 1;
    return &sonde_copy.outside_copy[at];
}

#if PY_VERSION_HEX >= 0x030b0000
/* Return the copy of a frame below the window; NULL if the second copy differs. */
static raw_frame *find_lower_frame(const sonde_copied_range *range, uintptr_t address)
{
    char *first = range->bytes + (address - range->low);
    const char *second = lower_again + (first - lower_bytes);
    int is_same = same_frame((const raw_frame *)first, (const raw_frame *)second, 0);
    return is_same ? (raw_frame *)first : NULL;
}
#endif

raw_frame *sonde_stack_copy_find(uintptr_t address, int level)
{
    if (!may_be_frame(address))
        return NULL;
    if (is_inside(&sonde_copy.window, address)) {
        raw_frame *frame = (raw_frame *)(sonde_copy.window.bytes + (address - sonde_copy.window.low));
        sonde_copy.junction = address;
        memcpy(&sonde_copy.junction_copy, frame, FRAME_BYTES);
        return frame;
    }
#if PY_VERSION_HEX >= 0x030b0000
    for (int i = 0; i < sonde_copy.lower_n; i++)
        if (is_inside(&sonde_copy.lower[i], address))
            return find_lower_frame(&sonde_copy.lower[i], address);
#endif
    return read_outside(address, level);
}

#if PY_VERSION_HEX >= 0x030b0000
/* ---- the thread's state, and the top of its stack ----------------------------------- */

/* Move the window to where the state now says it should lie. Returns 0 if it was there already. */
static int move_window(sonde_view *view)
{
    uintptr_t chunk = (uintptr_t)sonde_copy.state.datastack_chunk;
    uintptr_t limit = (uintptr_t)sonde_copy.state.datastack_limit;
    uintptr_t anchor = (uintptr_t)sonde_copy.state.datastack_top;
    if (sonde_copy.current >= chunk && sonde_copy.current < limit)
        anchor = sonde_copy.current;
    if (chunk == 0 || !may_be_frame(chunk) || anchor < chunk || anchor > limit)
        return view->window = 0;
    uintptr_t low = (anchor - chunk > WINDOW_BELOW ? anchor - WINDOW_BELOW : chunk) & ~(uintptr_t)7;
    uintptr_t end = limit - low > sizeof window_bytes ? low + sizeof window_bytes : limit;
    int has_moved = low != view->window || end != view->window_end;
    view->window = low;
    view->window_end = end;
    return has_moved;
}

/* Does the thread run no Python at all? Its cframe says whether it does, and a cframe lies on the stack
 * of C: one that was left before we read it may hold a zero by now. The first one, in the thread's state,
 * is the only one without a frame. */
static int runs_nothing(const sonde_view *view)
{
#if HAS_CFRAME
    return view->cframe == 0 || view->cframe == view->state + offsetof(PyThreadState, root_cframe);
#else
    (void)view;
    return 1;
#endif
}

/* Read in one go: the state, the window, where the thread is, the window again, where it is then.
 * Returns 0 or -errno; -EAGAIN if a guess was wrong and has been corrected. */
static int read_top(sonde_view *view)
{
    sonde_piece pieces[5] = {{&sonde_copy.state, view->state, sizeof sonde_copy.state}};
    size_t bytes = view->window_end - view->window;
    int is_known = view->window && (view->cframe || !HAS_CFRAME);
    if (is_known) {
        pieces[1] = (sonde_piece){first_bytes, view->window, bytes};
        pieces[2] = (sonde_piece){&sonde_copy.current, find_current_word(view),
                                  sizeof sonde_copy.current};
        pieces[3] = (sonde_piece){window_bytes, view->window, bytes};
        pieces[4] = (sonde_piece){&current_after, pieces[2].from, sizeof current_after};
    }
    int status = is_known ? read_in_order(pieces, 3, 5) : sonde_read_pieces(pieces, 1);
    if (status < 0 && is_known) {
        /* Start over from the state alone. */
        view->cframe = view->window = 0;
        status = sonde_read_memory(&sonde_copy.state, view->state, sizeof sonde_copy.state);
        return status < 0 ? -EFAULT : -EAGAIN;
    }
    if (status < 0)
        return status;
#if HAS_CFRAME
    if ((uintptr_t)sonde_copy.state.cframe != view->cframe || !is_known) {
        view->cframe = (uintptr_t)sonde_copy.state.cframe;
        sonde_copy.current = 0;
        if (view->cframe == 0)
            return 0; /* it runs no Python yet */
        status = sonde_read_memory(&sonde_copy.current, find_current_word(view), sizeof sonde_copy.current);
        move_window(view);
        return status < 0 || sonde_copy.current || !runs_nothing(view) ? -EAGAIN : 0;
    }
#else
    if (!is_known)
        sonde_copy.current = (uintptr_t)sonde_copy.state.current_frame;
    if (sonde_copy.current == find_bottom(&sonde_copy.state))
        sonde_copy.current = 0; /* it runs no Python now */
    if (!is_known) {
        move_window(view);
        return sonde_copy.current ? -EAGAIN : 0;
    }
#endif
    return 0;
}

/* Has the thread left the caller of the innermost frame? Then both copies may show a frame that had
 * ended: its bytes are there until others take their place. */
static int has_left(uintptr_t caller)
{
    uintptr_t chunk = (uintptr_t)sonde_copy.state.datastack_chunk;
    int is_on_stack = current_after >= chunk && current_after < (uintptr_t)sonde_copy.state.datastack_limit;
    return is_inside(&sonde_copy.window, caller) && is_on_stack && current_after < caller;
}

/* Do both copies of the window agree? Then we know what ran at the moment between them. Of the
 * innermost frame only the second copy counts: calls come and go. A caller or two may have gone
 * on to another line meanwhile; that does not change who called whom. */
static int is_window_sound(void)
{
    uintptr_t at = sonde_copy.current;
    for (int level = 0; at && level < MAX_STEPS; level++) {
        if (!is_inside(&sonde_copy.window, at))
            return 1; /* for what lies below see find_junction() and sonde_outside_hold() */
        const raw_frame *second = (const raw_frame *)(window_bytes + (at - sonde_copy.window.low));
        const raw_frame *first = (const raw_frame *)(first_bytes + (at - sonde_copy.window.low));
        if ((level > 0 || sonde_copy.is_strict) && !same_frame(first, second, level <= 2))
            return 0;
        at = previous_of(second);
        if (at & 7 || (level == 0 && has_left(at)))
            return 0;
    }
    return 1;
}

static int is_slow(void)
{
    int64_t took_ns = sonde_clock_ns() - sonde_copy.begin_ns;
    if (!sonde_copy.is_strict)
        sonde_reading_top_took(took_ns);
    return took_ns > sonde_reading_top_limit(sonde_copy.is_strict);
}

int sonde_stack_copy_top(sonde_view *view)
{
    /* Each reading corrects wrong guesses: at most that of the cframe, then that of the window. */
    for (int i = 0; i < 4; i++) {
        sonde_copy.begin_ns = sonde_clock_ns();
        int status = read_top(view);
        if (status == -EAGAIN)
            continue;
        if (status < 0)
            return status;
        if (sonde_copy.current == 0 && runs_nothing(view))
            return 0;
        if (sonde_copy.current == 0)
            continue;
        uintptr_t chunk = (uintptr_t)sonde_copy.state.datastack_chunk;
        uintptr_t limit = (uintptr_t)sonde_copy.state.datastack_limit;
        int is_on_stack = sonde_copy.current >= chunk && sonde_copy.current < limit;
        sonde_copy.window = (sonde_copied_range){view->window, view->window_end, window_bytes};
        if (sonde_copy.window.low < chunk || sonde_copy.window.high > limit ||
            (is_on_stack && !is_inside(&sonde_copy.window, sonde_copy.current))) {
            if (move_window(view))
                continue;
            return -EINTR;
        }
        return is_slow() || !is_window_sound() ? -EINTR : 0;
    }
    return -EINTR;
}

/* Find the parts of the data stack that the window does not show, the nearest first. Returns 0 or
 * -errno. */
static int find_lower(void)
{
    uintptr_t chunk = (uintptr_t)sonde_copy.state.datastack_chunk;
    int has_window = sonde_copy.window.high > sonde_copy.window.low;
    uintptr_t high = has_window ? sonde_copy.window.low + FRAME_BYTES
                                : (uintptr_t)sonde_copy.state.datastack_top;
    size_t used = 0;
    sonde_copy.lower_n = 0;
    while (chunk && sonde_copy.lower_n < MOST_CHUNKS) {
        if (!may_be_frame(chunk) || high < chunk || high - chunk > LOWER_BYTES - used)
            return 0; /* deeper than any stack that we show, or its frames are found one by one */
        sonde_copy.lower[sonde_copy.lower_n++] = (sonde_copied_range){chunk, high, lower_bytes + used};
        used += (high - chunk + 15) & ~(size_t)15;
        /* The head of a chunk says where the chunk before it is, and that one's head how full it
         * is. */
        _PyStackChunk head;
        if (sonde_read_memory(&head, chunk, offsetof(_PyStackChunk, data)) < 0)
            return -EFAULT;
        chunk = (uintptr_t)head.previous;
        if (chunk == 0)
            return 0;
        if (!may_be_frame(chunk) || sonde_read_memory(&head, chunk, offsetof(_PyStackChunk, data)) < 0)
            return -EFAULT;
        if (head.top > LOWER_BYTES / sizeof(PyObject *))
            return 0;
        high = chunk + offsetof(_PyStackChunk, data) + head.top * sizeof(PyObject *);
    }
    return 0;
}

static int is_lower(uintptr_t address)
{
    for (int i = 0; i < sonde_copy.lower_n; i++)
        if (is_inside(&sonde_copy.lower[i], address))
            return 1;
    return 0;
}

/* Find the lowest frame of the window that is on the stack. Returns 0 or -1. */
static int find_junction(void)
{
    uintptr_t at = sonde_copy.current, bottom = find_bottom(&sonde_copy.state);
    for (int steps = 0; at && at != bottom && !is_lower(at); steps++) {
        const raw_frame *frame = steps < MAX_STEPS ? sonde_stack_copy_find(at, steps) : NULL;
        if (frame == NULL || !is_sane(frame))
            return -1;
        at = previous_of(frame);
    }
    return 0;
}

typedef struct {
    uintptr_t current;  /* the innermost frame */
    raw_frame junction; /* FRAME_BYTES of it */
} second_look;

/* In this order: if the stack reached this far up, the frame there was alive, and is either still what
 * it was or has been overwritten. */
static int ask_for_look(second_look *look, const sonde_view *view, sonde_piece *pieces)
{
    pieces[0] = (sonde_piece){&look->current, find_current_word(view), sizeof look->current};
    pieces[1] = (sonde_piece){&look->junction, sonde_copy.junction, FRAME_BYTES};
    return sonde_copy.junction ? 2 : 1;
}

/* Is the lowest frame of the window still on the stack, and what it was? */
static int still_holds(const second_look *look)
{
    if (sonde_copy.junction == 0)
        return look->current == sonde_copy.current;
    int is_on_stack = look->current >= sonde_copy.window.low &&
                      look->current < (uintptr_t)sonde_copy.state.datastack_limit;
    if (is_on_stack ? look->current < sonde_copy.junction : look->current != sonde_copy.current)
        return 0;
    return same_frame(&sonde_copy.junction_copy, &look->junction, sonde_copy.junction == sonde_copy.current);
}

/* Copy what lies below the window. Then look once more at the lowest frame of the window, and
 * whether the stack still reaches up to it: the memory of frames that have ended keeps its bytes
 * until it is used again. Then copy what lies below again, for find_lower_frame(), and look again. */
static int read_lower(const sonde_view *view)
{
    sonde_piece pieces[2 * MOST_CHUNKS + 4];
    second_look between, after;
    int64_t more_ns = (sonde_copy.lower_n - 1) * SLOW_CHUNK_NS +
                      sonde_copy.outside_n * (int64_t)SLOW_PIECE_NS;
    int n = 0;
    for (; n < sonde_copy.lower_n; n++) {
        size_t bytes = sonde_copy.lower[n].high - sonde_copy.lower[n].low;
        pieces[n] = (sonde_piece){sonde_copy.lower[n].bytes, sonde_copy.lower[n].low, bytes};
        more_ns += 2 * (int64_t)(bytes / SLOW_BYTES_PER_NS);
    }
    n += ask_for_look(&between, view, pieces + n);
    int first_n = sonde_copy.lower_n + 1;
    for (int i = 0; i < sonde_copy.lower_n; i++, n++) {
        char *to = lower_again + (sonde_copy.lower[i].bytes - lower_bytes);
        pieces[n] = (sonde_piece){to, pieces[i].from, pieces[i].bytes};
    }
    n += ask_for_look(&after, view, pieces + n);
    if (read_in_order(pieces, first_n, n) < 0)
        return -EFAULT;
    /* Longer than this would be time enough to leave all these frames and come back by another
     * way. */
    int64_t took_ns = sonde_clock_ns() - sonde_copy.begin_ns;
    sonde_copy.most_ns = sonde_reading_rest_limit(sonde_copy.is_strict, took_ns, more_ns);
    if (took_ns > sonde_copy.most_ns)
        return -EINTR;
    return still_holds(&between) && still_holds(&after) ? 0 : -EAGAIN;
}

static int needs_lower(void)
{
    if (sonde_copy.window.high == sonde_copy.window.low)
        return sonde_copy.state.datastack_chunk != NULL;
    if (sonde_copy.window.low > (uintptr_t)sonde_copy.state.datastack_chunk)
        return 1;
    /* The window begins with the head of the chunk. */
    return ((const _PyStackChunk *)window_bytes)->previous != NULL;
}

int sonde_stack_copy_rest(const sonde_view *view)
{
    sonde_copy.junction = 0;
    sonde_copy.lower_n = 0;
    sonde_copy.limit_ns = sonde_reading_top_limit(sonde_copy.is_strict);
    sonde_copy.most_ns = 3 * sonde_copy.limit_ns / 2;
    if (!needs_lower() || (find_lower() == 0 && find_junction() == 0 && read_lower(view) == 0))
        return 0;
    return -EINTR;
}

#endif /* 3.11 on; for 3.10 see outside_frames.c */

#endif
