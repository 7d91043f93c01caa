/* The stack of another thread, read while it runs.
 *
 * From 3.11 on a thread's frames lie one after the other on its data stack. The
 * top of it, where things change, is copied in one short read; what lies below
 * cannot change while the lowest frame of that copy is alive, so it is copied
 * afterwards and that frame is looked at once more. Frames elsewhere (those of
 * generators; all of them on 3.10) are read one by one and looked at again.
 * A read that took too long, or anything that does not fit, is a torn stack:
 * tried again a few times, then given up and counted.
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
/* The copy of the top is a few dozen nanoseconds of a system call of one
 * microsecond. If that took this long, we were interrupted, maybe inside. */
#define SLOW_NS 6000
#define WINDOW_BELOW 1536
#define WINDOW_ABOVE 256
#define LOWER_BYTES (128 * 1024)
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
static int is_sane(const raw_frame *frame)
{
    return ((const PyObject *)frame)->ob_type == &PyFrame_Type;
}

static int is_generator_frame(const raw_frame *frame, const sonde_code *code)
{
    (void)frame;
    return code->is_generator;
}

#endif

/* ---- what was copied, in one look ------------------------------------------------ */

typedef struct {
    uintptr_t low, high; /* the addresses it was copied from; high == low: nothing */
    char *bytes;
} sonde_region;

typedef struct {
    PyThreadState state;
    uintptr_t current; /* the innermost frame */
    sonde_region window;
    sonde_region lower[16];
    int lower_n;
    uintptr_t junction;    /* the lowest frame of the window that was passed */
    raw_frame junction_copy;
    int outside_n;
    int next_outside; /* where the next one is expected */
    uintptr_t outside[SONDE_MAX_DEPTH];
    int is_used[SONDE_MAX_DEPTH];
    char outside_copy[SONDE_MAX_DEPTH][FRAME_BYTES];
} sonde_copies;

/* One thread samples; too large for its stack. */
static sonde_copies now;
static char window_bytes[WINDOW_BELOW + WINDOW_ABOVE + FRAME_BYTES];
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

static raw_frame *read_outside(uintptr_t address)
{
    for (int i = 0; i < now.outside_n; i++) {
        int at = (now.next_outside + i) % now.outside_n;
        if (now.outside[at] == address) {
            now.next_outside = at + 1;
            now.is_used[at] = 1;
            return (raw_frame *)now.outside_copy[at];
        }
    }
    if (now.outside_n == SONDE_MAX_DEPTH)
        return NULL;
    int at = now.outside_n;
    if (sonde_peek(now.outside_copy[at], address, FRAME_BYTES) < 0)
        return NULL;
    now.outside[at] = address;
    now.is_used[at] = 1;
    now.outside_n = at + 1;
    return (raw_frame *)now.outside_copy[at];
}

static raw_frame *find_frame(uintptr_t address)
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
    return read_outside(address);
}

/* ---- the thread's state, and the top of its stack ----------------------------------- */

#if PY_VERSION_HEX >= 0x030b0000

#if PY_VERSION_HEX < 0x030d0000
#define HAS_CFRAME 1
#else
#define HAS_CFRAME 0
#endif

/* Where the window should lie, as the state says now. 0: as it was. */
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

/* The state, the innermost frame and the window in one read; 0 or -errno. */
static int read_top(sonde_view *view)
{
    sonde_piece pieces[3] = {{&now.state, view->state, sizeof now.state}};
    int n = 1;
#if HAS_CFRAME
    _PyCFrame cframe;
    if (view->cframe)
        pieces[n++] = (sonde_piece){&cframe, view->cframe, sizeof cframe};
#endif
    if (view->window)
        pieces[n++] =
            (sonde_piece){window_bytes, view->window, view->window_end - view->window};
    int status = sonde_peek_all(pieces, n);
    if (status < 0 && n > 1) {
        /* A guess led nowhere: start over from the state alone. */
        view->cframe = view->window = 0;
        return sonde_peek(&now.state, view->state, sizeof now.state) < 0 ? -EFAULT : -EAGAIN;
    }
    if (status < 0)
        return status;
#if HAS_CFRAME
    if ((uintptr_t)now.state.cframe != view->cframe) {
        view->cframe = (uintptr_t)now.state.cframe;
        return -EAGAIN;
    }
    now.current = view->cframe ? (uintptr_t)cframe.current_frame : 0;
#else
    now.current = (uintptr_t)now.state.current_frame;
#endif
    return 0;
}

static int find_top(sonde_view *view)
{
    /* Guesses are put right by what was read: at most the cframe, then the window. */
    for (int i = 0; i < 4; i++) {
        int64_t begin = sonde_clock_ns();
        int status = read_top(view);
        if (status == -EAGAIN)
            continue;
        if (status < 0)
            return status;
        if (now.current == 0)
            return 0;
        uintptr_t low = view->window;
        int is_on_stack = now.current >= (uintptr_t)now.state.datastack_chunk &&
                          now.current < (uintptr_t)now.state.datastack_limit;
        now.window = (sonde_region){low, view->window_end, window_bytes};
        if (low == 0 || (is_on_stack && !is_inside(&now.window, now.current)) ||
            low < (uintptr_t)now.state.datastack_chunk ||
            low >= (uintptr_t)now.state.datastack_limit) {
            if (move_window(view))
                continue;
            now.window.high = now.window.low = 0;
        }
        return sonde_clock_ns() - begin > SLOW_NS ? -EINTR : 0;
    }
    return -EINTR;
}

/* Copy what lies below the window, and the frames that were elsewhere last time. */
static int read_lower(void)
{
    static sonde_piece pieces[SONDE_MAX_PIECES];
    uintptr_t chunk = (uintptr_t)now.state.datastack_chunk;
    uintptr_t high = now.window.high > now.window.low ? now.window.low + FRAME_BYTES
                                                      : (uintptr_t)now.state.datastack_top;
    size_t used = 0;
    int n = 0;
    now.lower_n = 0;
    while (chunk && now.lower_n < 16) {
        if (!may_be_frame(chunk) || high < chunk || high - chunk > LOWER_BYTES - used)
            break;
        now.lower[now.lower_n++] = (sonde_region){chunk, high, lower_bytes + used};
        if (now.lower_n > 1 || high > chunk)
            pieces[n++] = (sonde_piece){lower_bytes + used, chunk, high - chunk};
        used += (high - chunk + 15) & ~(size_t)15;
        /* The head of a chunk says where the one before it is. */
        _PyStackChunk head;
        if (sonde_peek(&head, chunk, offsetof(_PyStackChunk, data)) < 0)
            return -EFAULT;
        chunk = (uintptr_t)head.previous;
        if (chunk == 0)
            break;
        if (!may_be_frame(chunk) || sonde_peek(&head, chunk, offsetof(_PyStackChunk, data)) < 0)
            return -EFAULT;
        if (head.top > LOWER_BYTES / sizeof(PyObject *))
            break;
        high = chunk + offsetof(_PyStackChunk, data) + head.top * sizeof(PyObject *);
    }
    return n ? sonde_peek_all(pieces, n) : 0;
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

#else /* 3.10 */

static int find_top(sonde_view *view)
{
    int status = sonde_peek(&now.state, view->state, sizeof now.state);
    now.current = status < 0 ? 0 : (uintptr_t)now.state.frame;
    return status;
}

#endif

/* Have the frames that were not on the data stack last time read in one go. */
static void prefetch_outside(const sonde_view *view)
{
    static sonde_piece pieces[SONDE_MAX_PIECES];
    now.outside_n = now.next_outside = 0;
    if (view->outside_n < 2)
        return;
    for (int i = 0; i < view->outside_n; i++) {
        now.outside[i] = view->outside[i];
        now.is_used[i] = 0;
        pieces[i] = (sonde_piece){now.outside_copy[i], view->outside[i], FRAME_BYTES};
    }
    if (sonde_peek_all(pieces, view->outside_n) == 0)
        now.outside_n = view->outside_n;
}

/* ---- the walk ---------------------------------------------------------------------- */

static int same_frame(const raw_frame *one, const raw_frame *other, int is_innermost)
{
    return previous_of(one) == previous_of(other) && code_of(one) == code_of(other) &&
           (is_innermost || place_of(one) == place_of(other));
}

/* Is what was read apart from the top still as it was? */
static int is_unchanged(int with_junction)
{
    static sonde_piece pieces[SONDE_MAX_PIECES];
    static const raw_frame *before[SONDE_MAX_DEPTH + 1];
    static uintptr_t address[SONDE_MAX_DEPTH + 1];
    int n = 0;
    if (with_junction && now.junction) {
        address[n] = now.junction;
        before[n++] = &now.junction_copy;
    }
    for (int i = 0; i < now.outside_n && n < SONDE_MAX_PIECES; i++)
        if (now.is_used[i]) {
            address[n] = now.outside[i];
            before[n++] = (const raw_frame *)now.outside_copy[i];
        }
    for (int i = 0; i < n; i++)
        pieces[i] = (sonde_piece){again[i], address[i], FRAME_BYTES};
    if (n && sonde_peek_all(pieces, n) < 0)
        return 0;
    for (int i = 0; i < n; i++)
        if (!same_frame(before[i], (const raw_frame *)again[i], address[i] == now.current))
            return 0;
    return 1;
}

/* Frames from the innermost out. 0, or -1 if something does not fit. */
static int walk(sonde_stack *stack, sonde_intern *text, int *fresh)
{
    int ends_in_generator = 0, steps = 0;
    stack->depth = stack->is_cut = 0;
    for (uintptr_t at = now.current; at; steps++) {
        const raw_frame *frame = steps < MOST_STEPS ? find_frame(at) : NULL;
        if (frame == NULL || !is_sane(frame))
            return -1;
        at = previous_of(frame);
        if (is_shim(frame))
            continue;
        if (stack->depth == SONDE_MAX_DEPTH) {
            stack->is_cut = 1;
            return 0;
        }
        sonde_code *code = may_be_frame(code_of(frame))
                               ? sonde_codes_get(code_of(frame), text, fresh)
                               : NULL;
        int64_t unit = unit_of(frame);
        if (code == NULL || unit < -1 || unit >= (int64_t)code->units + 1)
            return -1;
        int32_t line = unit < 0 || code->units == 0 ? code->key.first_line
                       : unit < (int64_t)code->units ? code->lines[unit]
                                                     : code->lines[code->units - 1];
        stack->frame[stack->depth++] = (sonde_frame){code, line};
        ends_in_generator = is_generator_frame(frame, code);
    }
    /* A generator that was just suspended no longer says who called it. */
    return ends_in_generator ? -1 : 0;
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
        if (now.is_used[i])
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

/* One try: SONDE_LOOK_TORN asks for another. */
static enum sonde_look look_once(sonde_view *view, sonde_stack *stack, sonde_intern *text)
{
    int status = find_top(view), fresh = 0, is_deep = 0;
    if (status == -EFAULT || (status == 0 && !is_same_thread(view)))
        return SONDE_LOOK_GONE;
    if (status < 0)
        return SONDE_LOOK_TORN;
    stack->holds_gil = holds_gil(view);
    stack->tid = tid_of(&now.state);
    if (now.current == 0)
        return SONDE_LOOK_EMPTY;
    now.junction = 0;
    prefetch_outside(view);
#if PY_VERSION_HEX >= 0x030b0000
    now.lower_n = 0;
    is_deep = needs_lower();
    if (is_deep && read_lower() < 0)
        return SONDE_LOOK_TORN;
#endif
    int walked = walk(stack, text, &fresh);
    int is_sound = walked == 0 && is_unchanged(is_deep) &&
                   (!fresh || is_top_unchanged(view, stack));
    if (fresh && !is_sound)
        for (int i = 0; i < stack->depth; i++)
            sonde_store_relaxed(&stack->frame[i].code->alive, 0);
    if (!is_sound)
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
