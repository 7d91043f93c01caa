/* The stack of another thread, read while it runs.
 *
 * From 3.11 on a thread's frames lie one after the other on its data stack. The
 * top of it, where things change, is copied twice in one short read, with a look
 * in between at where the thread is; what lies below cannot change while the
 * lowest frame of that copy is alive, so it is copied afterwards and that frame
 * is looked at once more. Frames elsewhere (those of generators; all of them on
 * 3.10) are read one by one and looked at again. A read that took too long, or
 * anything that does not fit, is a torn stack: tried again a few times, then
 * given up and counted.
 */
#define _GNU_SOURCE
#include "frames.h"

#if SONDE_HAS_FRAMES

#undef _PyGC_FINALIZED
#if PY_VERSION_HEX >= 0x030b0000
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#else
#include <frameobject.h>
#endif

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRIES 6
/* The copies of the top are a few dozen nanoseconds of a system call of one
 * microsecond. If that took this long, and longer than it usually does here, we
 * were interrupted, maybe inside. The same for what lies below, plus some time
 * for each byte. */
#define SLOW_NS 2500
#define SLOWEST_NS 20000
#define SLOW_BYTES_PER_NS 2
#define SLOW_CHUNK_NS 1500
#define SLOW_PIECE_NS 1500
#define MOST_OUTSIDE (2 * SONDE_MAX_DEPTH)
#define WINDOW_BELOW 1536
#define WINDOW_ABOVE 256
#define LOWER_BYTES (96 * 1024)
#define MOST_CHUNKS 16
#define MOST_STEPS (SONDE_MAX_DEPTH * 4)

#if PY_VERSION_HEX >= 0x030b0000

typedef _PyInterpreterFrame raw_frame;
#define FRAME_BYTES offsetof(raw_frame, localsplus)

static uintptr_t previous_of(const raw_frame *frame) { return (uintptr_t)frame->previous; }

static uintptr_t code_of(const raw_frame *frame)
{
#if PY_VERSION_HEX >= 0x030d0000
    return (uintptr_t)frame->f_executable;
#else
    return (uintptr_t)frame->f_code;
#endif
}

/* Where it is, in a form that can be compared. */
static uintptr_t place_of(const raw_frame *frame)
{
#if PY_VERSION_HEX >= 0x030d0000
    return (uintptr_t)frame->instr_ptr;
#else
    return (uintptr_t)frame->prev_instr;
#endif
}

static int64_t unit_of(const raw_frame *frame)
{
    int64_t bytes = (int64_t)(place_of(frame) - code_of(frame)) -
                    (int64_t)offsetof(PyCodeObject, co_code_adaptive);
    return bytes & 1 ? INT64_MIN : bytes / 2;
}

/* 3.12 puts a frame without code on the C stack between C and Python. */
static int is_shim(const raw_frame *frame)
{
#if PY_VERSION_HEX >= 0x030c0000
    return frame->owner == FRAME_OWNED_BY_CSTACK;
#else
    (void)frame;
    return 0;
#endif
}

/* Can it be the outermost one of a stack: called from C? */
static int may_be_first(const raw_frame *frame)
{
#if PY_VERSION_HEX >= 0x030c0000
    return is_shim(frame);
#else
    return frame->is_entry;
#endif
}

static int is_generator_frame(const raw_frame *frame, const sonde_code *code)
{
    (void)code;
    return frame->owner == FRAME_OWNED_BY_GENERATOR;
}

static int is_sane(const raw_frame *frame)
{
    return is_shim(frame) || frame->owner == FRAME_OWNED_BY_THREAD ||
           frame->owner == FRAME_OWNED_BY_GENERATOR;
}

#else

typedef struct _frame raw_frame;
#define FRAME_BYTES offsetof(raw_frame, f_blockstack)

static uintptr_t previous_of(const raw_frame *frame) { return (uintptr_t)frame->f_back; }
static uintptr_t code_of(const raw_frame *frame) { return (uintptr_t)frame->f_code; }
static uintptr_t place_of(const raw_frame *frame) { return (uintptr_t)frame->f_lasti; }
static int64_t unit_of(const raw_frame *frame) { return frame->f_lasti; }
static int is_shim(const raw_frame *frame) { (void)frame; return 0; }
static int may_be_first(const raw_frame *frame) { (void)frame; return 1; }
static int is_sane(const raw_frame *frame)
{
    /* A frame that has ended is kept for the next call of its function. */
    return ((const PyObject *)frame)->ob_type == &PyFrame_Type &&
           (frame->f_state == FRAME_EXECUTING || frame->f_state == FRAME_UNWINDING);
}

static int is_generator_frame(const raw_frame *frame, const sonde_code *code)
{
    (void)frame;
    return code->is_generator;
}

#endif

/* Frames that are not on the data stack, from this level on, must be the same
 * when they are looked at again. On 3.10, where all are, that takes so long that
 * short calls would hardly ever be seen. */
#if PY_VERSION_HEX >= 0x030b0000
#define SURE_LEVEL 0
#else
#define SURE_LEVEL 3
#endif

/* ---- what was copied, in one look ------------------------------------------------ */

typedef struct {
    uintptr_t low, high; /* the addresses it was copied from; high == low: nothing */
    char *bytes;
} sonde_region;

typedef struct {
    PyThreadState state;
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
    char outside_copy[MOST_OUTSIDE][FRAME_BYTES];
} sonde_copies;

/* One thread samples; too large for its stack. */
static sonde_copies now;
static int64_t usual_ns = 800; /* that the read of a top takes here */
static char first_bytes[WINDOW_BELOW + WINDOW_ABOVE + FRAME_BYTES];
static char window_bytes[sizeof first_bytes];
static char lower_bytes[LOWER_BYTES];
static char again[SONDE_MAX_DEPTH + 1][FRAME_BYTES];

static int is_inside(const sonde_region *region, uintptr_t address)
{
    return address >= region->low && address < region->high &&
           region->high - address >= FRAME_BYTES;
}

static int may_be_frame(uintptr_t address)
{
    return address >= SONDE_PAGE && address >> 48 == 0 && (address & 7) == 0;
}

static raw_frame *read_outside(uintptr_t address, int level)
{
    for (int i = 0; i < now.outside_n; i++) {
        int at = (now.next_outside + i) % now.outside_n;
        if (now.outside[at] == address) {
            if (now.level[at] >= 0 && now.level[at] != level)
                return NULL; /* a stack has no circles */
            now.next_outside = at + 1;
            now.level[at] = level;
            return (raw_frame *)now.outside_copy[at];
        }
    }
    if (now.outside_n == MOST_OUTSIDE)
        return NULL;
    int at = now.outside_n;
    if (sonde_peek(now.outside_copy[at], address, FRAME_BYTES) < 0)
        return NULL;
    now.outside[at] = address;
    now.level[at] = level;
    now.outside_n = at + 1;
    return (raw_frame *)now.outside_copy[at];
}

static raw_frame *find_frame(uintptr_t address, int level)
{
    if (!may_be_frame(address))
        return NULL;
    if (is_inside(&now.window, address)) {
        raw_frame *frame = (raw_frame *)(now.window.bytes + (address - now.window.low));
        now.junction = address;
        memcpy(&now.junction_copy, frame, FRAME_BYTES);
        return frame;
    }
    for (int i = 0; i < now.lower_n; i++)
        if (is_inside(&now.lower[i], address))
            return (raw_frame *)(now.lower[i].bytes + (address - now.lower[i].low));
    return read_outside(address, level);
}

static int same_frame(const raw_frame *one, const raw_frame *other, int is_innermost)
{
    return previous_of(one) == previous_of(other) && code_of(one) == code_of(other) &&
           (is_innermost || place_of(one) == place_of(other));
}

#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030d0000
#define HAS_CFRAME 1
#else
#define HAS_CFRAME 0
#endif

/* Where the address of the innermost frame stands. */
static uintptr_t find_current_word(const sonde_view *view)
{
#if HAS_CFRAME
    return view->cframe + offsetof(_PyCFrame, current_frame);
#elif PY_VERSION_HEX >= 0x030d0000
    return view->state + offsetof(PyThreadState, current_frame);
#else
    return view->state + offsetof(PyThreadState, frame);
#endif
}

/* The longest that the read of a top may take: three times the median. */
static int64_t limit_ns(void)
{
    int64_t most_ns = 3 * usual_ns;
    return most_ns < SLOW_NS ? SLOW_NS : most_ns > SLOWEST_NS ? SLOWEST_NS : most_ns;
}

/* Too long since the look began, for what has been read since? Then there was
 * time to leave these frames and come back to them by another way. */
static int is_in_time(int pieces)
{
#if PY_VERSION_HEX >= 0x030b0000
    int64_t most_ns = now.most_ns + limit_ns() / 2 + pieces * (int64_t)SLOW_PIECE_NS;
    return sonde_clock_ns() - now.begin_ns < most_ns;
#else
    return pieces >= 0;
#endif
}

/* The frames that were not on the data stack last time, to be read again. */
static int expect_outside(const sonde_view *view, sonde_piece *pieces)
{
    int n = view->outside_n < SONDE_MAX_PIECES ? view->outside_n : SONDE_MAX_PIECES - 1;
    for (int i = 0; i < n; i++) {
        now.outside[i] = view->outside[i];
        now.level[i] = -1;
        pieces[i] = (sonde_piece){now.outside_copy[i], view->outside[i], FRAME_BYTES};
    }
    return n;
}

/* ---- the thread's state, and the top of its stack ----------------------------------- */

#if PY_VERSION_HEX >= 0x030b0000

/* Where the window should lie, as the state says now. 0: where it was. */
static int move_window(sonde_view *view)
{
    uintptr_t chunk = (uintptr_t)now.state.datastack_chunk;
    uintptr_t limit = (uintptr_t)now.state.datastack_limit;
    uintptr_t anchor = (uintptr_t)now.state.datastack_top;
    if (now.current >= chunk && now.current < limit)
        anchor = now.current;
    if (chunk == 0 || !may_be_frame(chunk) || anchor < chunk || anchor > limit)
        return view->window = 0;
    uintptr_t low = (anchor - chunk > WINDOW_BELOW ? anchor - WINDOW_BELOW : chunk) & ~(uintptr_t)7;
    uintptr_t end = limit - low > sizeof window_bytes ? low + sizeof window_bytes : limit;
    int has_moved = low != view->window || end != view->window_end;
    view->window = low;
    view->window_end = end;
    return has_moved;
}

/* In one read: the state, the window, where the thread is, the window again.
 * 0 or -errno; -EAGAIN if a guess was wrong and has been put right. */
static int read_top(sonde_view *view)
{
    sonde_piece pieces[4] = {{&now.state, view->state, sizeof now.state}};
    size_t bytes = view->window_end - view->window;
    int is_known = view->window && (view->cframe || !HAS_CFRAME);
    if (is_known) {
        pieces[1] = (sonde_piece){first_bytes, view->window, bytes};
        pieces[2] = (sonde_piece){&now.current, find_current_word(view), sizeof now.current};
        pieces[3] = (sonde_piece){window_bytes, view->window, bytes};
    }
    int status = sonde_peek_all(pieces, is_known ? 4 : 1);
    if (status < 0 && is_known) {
        /* Start over from the state alone. */
        view->cframe = view->window = 0;
        return sonde_peek(&now.state, view->state, sizeof now.state) < 0 ? -EFAULT : -EAGAIN;
    }
    if (status < 0)
        return status;
#if HAS_CFRAME
    if ((uintptr_t)now.state.cframe != view->cframe || !is_known) {
        view->cframe = (uintptr_t)now.state.cframe;
        now.current = 0;
        if (view->cframe == 0)
            return 0; /* it runs no Python yet */
        status = sonde_peek(&now.current, find_current_word(view), sizeof now.current);
        move_window(view);
        return status < 0 || now.current ? -EAGAIN : 0;
    }
#else
    if (!is_known) {
        now.current = (uintptr_t)now.state.current_frame;
        move_window(view);
        return now.current ? -EAGAIN : 0;
    }
#endif
    return 0;
}

/* What ran at the moment between the two copies of the window is known if the
 * frames below it are the same in both. Of the innermost frame only the second
 * copy counts: calls come and go. A caller or two may have gone on to another
 * line meanwhile; that does not change who called whom. */
static int is_window_sound(void)
{
    uintptr_t at = now.current;
    for (int level = 0; at && level < MOST_STEPS; level++) {
        if (!is_inside(&now.window, at))
            return 1; /* further down: see find_junction() and is_unchanged() */
        const raw_frame *second = (const raw_frame *)(window_bytes + (at - now.window.low));
        const raw_frame *first = (const raw_frame *)(first_bytes + (at - now.window.low));
        if (level > 0 && !same_frame(first, second, level <= 2))
            return 0;
        at = previous_of(second);
        if (at & 7)
            return 0;
    }
    return 1;
}

static int is_slow(void)
{
    int64_t took_ns = sonde_clock_ns() - now.begin_ns;
    usual_ns += took_ns > usual_ns ? 8 : -8;
    return took_ns > limit_ns();
}

static int find_top(sonde_view *view)
{
    /* Guesses are put right by what was read: at most the cframe, then the window. */
    for (int i = 0; i < 4; i++) {
        now.begin_ns = sonde_clock_ns();
        int status = read_top(view);
        if (status == -EAGAIN)
            continue;
        if (status < 0 || now.current == 0)
            return status;
        uintptr_t chunk = (uintptr_t)now.state.datastack_chunk;
        uintptr_t limit = (uintptr_t)now.state.datastack_limit;
        int is_on_stack = now.current >= chunk && now.current < limit;
        now.window = (sonde_region){view->window, view->window_end, window_bytes};
        if (now.window.low < chunk || now.window.high > limit ||
            (is_on_stack && !is_inside(&now.window, now.current))) {
            if (move_window(view))
                continue;
            return -EINTR;
        }
        return is_slow() || !is_window_sound() ? -EINTR : 0;
    }
    return -EINTR;
}

/* Where the parts of the data stack lie that the window does not show, the
 * nearest first. 0 or -errno. */
static int find_lower(void)
{
    uintptr_t chunk = (uintptr_t)now.state.datastack_chunk;
    uintptr_t high = now.window.high > now.window.low ? now.window.low + FRAME_BYTES
                                                      : (uintptr_t)now.state.datastack_top;
    size_t used = 0;
    now.lower_n = 0;
    while (chunk && now.lower_n < MOST_CHUNKS) {
        if (!may_be_frame(chunk) || high < chunk || high - chunk > LOWER_BYTES - used)
            return 0; /* beyond what is shown of a stack, or found one by one */
        now.lower[now.lower_n++] = (sonde_region){chunk, high, lower_bytes + used};
        used += (high - chunk + 15) & ~(size_t)15;
        /* The head of a chunk says where the one before it is, and that how full it is. */
        _PyStackChunk head;
        if (sonde_peek(&head, chunk, offsetof(_PyStackChunk, data)) < 0)
            return -EFAULT;
        chunk = (uintptr_t)head.previous;
        if (chunk == 0)
            return 0;
        if (!may_be_frame(chunk) || sonde_peek(&head, chunk, offsetof(_PyStackChunk, data)) < 0)
            return -EFAULT;
        if (head.top > LOWER_BYTES / sizeof(PyObject *))
            return 0;
        high = chunk + offsetof(_PyStackChunk, data) + head.top * sizeof(PyObject *);
    }
    return 0;
}

static int is_lower(uintptr_t address)
{
    for (int i = 0; i < now.lower_n; i++)
        if (is_inside(&now.lower[i], address))
            return 1;
    return 0;
}

/* The lowest frame of the window that is on the stack. 0 or -1. */
static int find_junction(void)
{
    uintptr_t at = now.current;
    for (int steps = 0; at && !is_lower(at); steps++) {
        const raw_frame *frame = steps < MOST_STEPS ? find_frame(at, steps) : NULL;
        if (frame == NULL || !is_sane(frame))
            return -1;
        at = previous_of(frame);
    }
    return 0;
}

/* Copy what lies below the window, then look once more at the lowest frame of
 * the window, and whether the stack still reaches up to it: memory of frames
 * that have ended keeps its bytes until it is used again. */
static int read_lower(const sonde_view *view)
{
    sonde_piece pieces[MOST_CHUNKS + 2];
    char junction[FRAME_BYTES];
    uintptr_t current = 0;
    int64_t most_ns = 3 * limit_ns() / 2 + (now.lower_n - 1) * SLOW_CHUNK_NS +
                      now.outside_n * (int64_t)SLOW_PIECE_NS;
    int n = 0;
    for (; n < now.lower_n; n++) {
        size_t bytes = now.lower[n].high - now.lower[n].low;
        pieces[n] = (sonde_piece){now.lower[n].bytes, now.lower[n].low, bytes};
        most_ns += (int64_t)(bytes / SLOW_BYTES_PER_NS);
    }
    /* In this order: if the stack reached so far up, the frame there was alive, and
     * is either still what it was or has been written over. */
    pieces[n++] = (sonde_piece){&current, find_current_word(view), sizeof current};
    if (now.junction)
        pieces[n++] = (sonde_piece){junction, now.junction, FRAME_BYTES};
    if (sonde_peek_all(pieces, n) < 0)
        return -EFAULT;
    /* Time enough to leave all these frames and come back by another way. */
    now.most_ns = most_ns;
    if (sonde_clock_ns() - now.begin_ns > most_ns)
        return -EINTR;
    if (now.junction == 0)
        return current == now.current ? 0 : -EAGAIN;
    int is_on_stack = current >= now.window.low &&
                      current < (uintptr_t)now.state.datastack_limit;
    if (is_on_stack ? current < now.junction : current != now.current)
        return -EAGAIN;
    return same_frame(&now.junction_copy, (const raw_frame *)junction,
                      now.junction == now.current)
               ? 0
               : -EAGAIN;
}

static int needs_lower(void)
{
    if (now.window.high == now.window.low)
        return now.state.datastack_chunk != NULL;
    if (now.window.low > (uintptr_t)now.state.datastack_chunk)
        return 1;
    /* The window begins with the head of the chunk. */
    return ((const _PyStackChunk *)window_bytes)->previous != NULL;
}

/* Have the frames that were not on the data stack last time read in one go. */
static void prefetch_outside(const sonde_view *view)
{
    static sonde_piece pieces[SONDE_MAX_PIECES];
    now.outside_n = now.next_outside = 0;
    int n = view->outside_n >= 2 ? expect_outside(view, pieces) : 0;
    if (n && sonde_peek_all(pieces, n) == 0)
        now.outside_n = n;
}

#else /* 3.10 */

static int find_top(sonde_view *view)
{
    /* The state, then the frames it had last time, the innermost first. */
    static sonde_piece pieces[SONDE_MAX_PIECES];
    now.outside_n = now.next_outside = 0;
    pieces[0] = (sonde_piece){&now.state, view->state, sizeof now.state};
    int n = expect_outside(view, pieces + 1);
    int status = sonde_peek_all(pieces, n + 1);
    if (status == 0)
        now.outside_n = n;
    else
        status = sonde_peek(&now.state, view->state, sizeof now.state);
    now.current = status < 0 ? 0 : (uintptr_t)now.state.frame;
    return status;
}

#endif

/* ---- the walk ---------------------------------------------------------------------- */

/* Are the frames that are not on the data stack still as they were, and on the
 * stack? */
static int is_unchanged(const sonde_view *view, int must_be_quick)
{
    static sonde_piece pieces[SONDE_MAX_PIECES];
    static int place[SONDE_MAX_DEPTH];
    uintptr_t current = now.current;
    int n = 0, is_outside = 0;
    for (int i = 0; i < now.outside_n && n < SONDE_MAX_PIECES - 1; i++)
        if (now.level[i] >= SURE_LEVEL) {
            is_outside |= now.level[i] == 0;
            place[n++] = i;
        }
    /* Where the thread is comes first: see read_lower(). */
    pieces[0] = (sonde_piece){&current, find_current_word(view), sizeof current};
    for (int i = 0; i < n; i++)
        pieces[i + 1] = (sonde_piece){again[i], now.outside[place[i]], FRAME_BYTES};
    if (n == 0)
        return 1;
    if (sonde_peek_all(pieces, n + 1) < 0 || (is_outside && current != now.current))
        return 0;
    if (must_be_quick && !is_in_time(n))
        return 0;
    for (int i = 0; i < n; i++)
        if (!same_frame((const raw_frame *)now.outside_copy[place[i]], (const raw_frame *)again[i],
                        now.level[place[i]] <= 2))
            return 0;
    return 1;
}

/* Frames from the innermost out. 0, or -1 if something does not fit. */
static int walk(sonde_stack *stack, sonde_intern *text, int *fresh)
{
    int is_first = 0, steps = 0;
    stack->depth = stack->is_cut = 0;
    for (uintptr_t at = now.current; at; steps++) {
        if (stack->depth == SONDE_MAX_DEPTH) {
            stack->is_cut = 1;
            return 0;
        }
        const raw_frame *frame = steps < MOST_STEPS ? find_frame(at, steps) : NULL;
        if (frame == NULL || !is_sane(frame))
            return -1;
        uintptr_t previous = previous_of(frame);
        /* The data stack grows upwards. */
        if (previous >= at && is_inside(&now.window, at) && is_inside(&now.window, previous))
            return -1;
        at = previous;
        is_first = may_be_first(frame);
        if (is_shim(frame))
            continue;
        sonde_code *code = may_be_frame(code_of(frame))
                               ? sonde_codes_get(code_of(frame), text, fresh)
                               : NULL;
        int64_t unit = unit_of(frame);
        if (code == NULL || code->is_shim || unit < -1 || unit >= (int64_t)code->units + 1)
            return -1;
        int32_t line = unit < 0 || code->units == 0 ? code->key.first_line
                       : unit < (int64_t)code->units ? code->lines[unit]
                                                     : code->lines[code->units - 1];
        stack->frame[stack->depth++] = (sonde_frame){code, line};
        if (is_generator_frame(frame, code))
            is_first = 0;
    }
    /* A generator that was just suspended, or a frame that is just being made,
     * does not say who called it. */
    return is_first || steps == 0 ? 0 : -1;
}

static void remember_outside(sonde_view *view)
{
    view->outside_n = 0;
    if (now.outside_n > view->outside_room) {
        uintptr_t *room = realloc(view->outside, (size_t)now.outside_n * sizeof *room);
        if (room == NULL)
            return;
        view->outside = room;
        view->outside_room = now.outside_n;
    }
    for (int i = 0; i < now.outside_n; i++)
        if (now.level[i] >= 0)
            view->outside[view->outside_n++] = now.outside[i];
}

static int holds_gil(const sonde_view *view)
{
#if PY_VERSION_HEX >= 0x030d0000
    (void)view;
    return now.state._status.holds_gil;
#elif PY_VERSION_HEX >= 0x030c0000
    (void)view;
    return now.state._status.active;
#else
    return (uintptr_t)_PyThreadState_UncheckedGet() == view->state;
#endif
}

static int is_same_thread(const sonde_view *view)
{
    return now.state.interp == PyInterpreterState_Main() && now.state.id == view->id;
}

static int is_top_unchanged(sonde_view *view, const sonde_stack *stack)
{
    static sonde_stack second;
    int fresh = 0;
    if (find_top(view) != 0 || !is_same_thread(view) || walk(&second, NULL, &fresh) < 0 || fresh ||
        second.depth != stack->depth)
        return 0;
    for (int i = 0; i < second.depth; i++)
        if (second.frame[i].code != stack->frame[i].code)
            return 0;
    return 1;
}

#if PY_VERSION_HEX < 0x030b0000

/* Where in glibc's struct behind pthread_self() the kernel's thread id stands. */
static size_t tid_offset;

static int find_tid_offset(void)
{
    enum { MOST = 2048 };
    static char head[MOST];
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    for (size_t bytes = MOST; bytes >= 256; bytes /= 2) {
        if (sonde_peek(head, (uintptr_t)pthread_self(), bytes) < 0)
            continue;
        for (size_t at = 0; at + 4 <= bytes; at += 4)
            if (memcmp(head + at, &tid, 4) == 0) {
                tid_offset = at;
                return 0;
            }
    }
    return -1;
}

static uint32_t tid_of(const PyThreadState *state)
{
    uint32_t tid = 0;
    return sonde_peek(&tid, state->thread_id + tid_offset, 4) < 0 ? 0 : tid;
}

#else

static int find_tid_offset(void) { return 0; }
static uint32_t tid_of(const PyThreadState *state) { return (uint32_t)state->native_thread_id; }

#endif

/* A frame that is just being made may not know its caller yet, and then looks
 * like the first one of its thread. A new first frame (greenlets have their
 * own) is believed when it is seen twice in a row. */
static int is_root_known(sonde_view *view, const sonde_stack *stack)
{
    uint32_t root = stack->is_cut ? view->root : stack->frame[stack->depth - 1].code->id;
    int is_known = root == view->root || root == view->next_root;
    view->next_root = root;
    if (is_known)
        view->root = root;
    return is_known;
}

/* One try: SONDE_LOOK_TORN asks for another. */
static enum sonde_look look_once(sonde_view *view, sonde_stack *stack, sonde_intern *text)
{
    int status = find_top(view), fresh = 0;
    if (status == -EFAULT || (status == 0 && !is_same_thread(view)))
        return SONDE_LOOK_GONE;
    if (status < 0)
        return SONDE_LOOK_TORN;
    stack->holds_gil = holds_gil(view);
    stack->tid = tid_of(&now.state);
    if (now.current == 0)
        return SONDE_LOOK_EMPTY;
    now.junction = 0;
    now.lower_n = 0;
    now.most_ns = 3 * limit_ns() / 2;
#if PY_VERSION_HEX >= 0x030b0000
    prefetch_outside(view);
    if (needs_lower() && (find_lower() < 0 || find_junction() < 0 || read_lower(view) < 0)) {
        remember_outside(view); /* the next try reads them in one go */
        return SONDE_LOOK_TORN;
    }
#endif
    int walked = walk(stack, text, &fresh);
    int is_sound = walked == 0 && is_unchanged(view, !fresh) &&
                   (!fresh || is_top_unchanged(view, stack));
    if (fresh && !is_sound)
        for (int i = 0; i < stack->depth; i++)
            sonde_store_relaxed(&stack->frame[i].code->alive, 0);
    /* Reading code takes long: with what is known now the next try will do. */
    if (fresh || !is_sound)
        return SONDE_LOOK_TORN;
    if (stack->depth && !is_root_known(view, stack))
        return SONDE_LOOK_TORN;
    remember_outside(view);
    return stack->depth ? SONDE_LOOK_OK : SONDE_LOOK_EMPTY;
}

enum sonde_look sonde_frames_look(sonde_view *view, sonde_stack *stack, sonde_intern *text)
{
    enum sonde_look found = SONDE_LOOK_TORN;
    for (int i = 0; i < TRIES && found == SONDE_LOOK_TORN; i++)
        found = look_once(view, stack, text);
    return found;
}

/* ---- the list of threads --------------------------------------------------------------- */

uintptr_t sonde_frames_head(void)
{
    /* A plain load; the main interpreter outlives the sampler. */
    return (uintptr_t)PyInterpreterState_ThreadHead(PyInterpreterState_Main());
}

int sonde_frames_has_others(void)
{
    /* New ones are put in front of it. */
    return PyInterpreterState_Head() != PyInterpreterState_Main();
}

int sonde_frames_entry(uintptr_t address, sonde_thread_entry *entry)
{
    static PyThreadState state;
    int status = sonde_peek(&state, address, sizeof state);
    if (status < 0)
        return status;
    if (state.interp != PyInterpreterState_Main())
        return -ESRCH;
    *entry = (sonde_thread_entry){address, (uintptr_t)state.next, state.id, tid_of(&state)};
    return 0;
}

int sonde_frames_prepare(void)
{
    char byte;
    int status = sonde_peek(&byte, (uintptr_t)&status, 1);
    if (status < 0)
        return status; /* the kernel, or a sandbox, does not let us */
    if (find_tid_offset() < 0)
        return -ENOSYS;
    return sonde_codes_watch() < 0 ? -EBUSY : 0;
}

#endif
