/* The stack of another thread, read while it runs: see stack_copy.c. */
#define _GNU_SOURCE 1
#include "stacks/code_copies.h"
#include "stacks/stack_copy.h"
#include "kernel/read_memory.h"
#include "kernel/thread.h"

#if SONDE_HAS_FRAMES

#include <errno.h>
#include <pthread.h>
#include <string.h>

/* Each try fails for itself, so that twice as many leave fewer than half of the torn stacks; where reading is
 * slow, the first ones must do. Without a GIL all threads move while we look, not only one of them. */
#ifdef Py_GIL_DISABLED
#define TRIES 24
#define MORE_TRIES 0
#else
#define TRIES 6
#define MORE_TRIES 6
#endif
#define LONG_NS 200000

/* Note that a call of the interpreter's C function ends with the outermost frame so far. */
static void note_end(sonde_stack *stack)
{
    if (stack->ends_n < SONDE_MAX_DEPTH)
        stack->ends[stack->ends_n++] = (uint16_t)stack->depth;
}

/* Walk the frames from the innermost outwards. Returns 0, or -1 if something does not fit. */
static int walk(sonde_stack *stack, const sonde_intern_handle *text, int *fresh)
{
    int is_first = 0, steps = 0;
    uintptr_t bottom = find_bottom(&sonde_copy.state);
    stack->depth = stack->is_cut = stack->ends_n = 0;
    for (uintptr_t at = sonde_copy.current; at; steps++) {
        if (at == bottom)
            return 0;
        if (stack->depth == SONDE_MAX_DEPTH) {
            stack->is_cut = 1;
            return 0;
        }
        const raw_frame *frame = steps < MAX_STEPS ? sonde_stack_copy_find(at, steps) : NULL;
        if (frame == NULL || !is_sane(frame))
            return -1;
        uintptr_t here = at, previous = previous_of(frame);
        /* The data stack grows upwards. */
        if (previous >= at && sonde_stack_copy_shows(at) && sonde_stack_copy_shows(previous))
            return -1;
        at = previous;
        is_first = may_be_first(frame);
        if (is_shim(frame)) {
            note_end(stack);
            continue;
        }
        sonde_code *code = may_be_frame(code_of(frame))
                               ? sonde_codes_get(code_of(frame), text, fresh)
                               : NULL;
        int64_t unit = code == NULL ? 0 : sonde_code_copies_unit(frame, code, sonde_copy.state.id);
        if (code == NULL || code->is_shim || unit < -1 || unit >= (int64_t)code->units + 1)
            return -1;
        int32_t line = unit < 0 || code->units == 0 ? code->key.first_line
                       : sonde_code_line(code, unit < (int64_t)code->units ? (uint32_t)unit : code->units - 1);
        if (stack->depth == 0) {
            stack->innermost = here;
            stack->unit = (int32_t)unit;
        }
        stack->frame[stack->depth++] = (sonde_frame){code, line};
        if (is_first)
            note_end(stack);
        if (is_generator_frame(frame, code))
            is_first = 0;
    }
    /* A generator that was just suspended, or a frame that is just being made, does not know its
     * caller. */
    return is_first || steps == 0 ? 0 : -1;
}

static int holds_gil(const sonde_view *view)
{
#if PY_VERSION_HEX >= 0x030e0000
    (void)view;
    return sonde_copy.state.holds_gil;
#elif PY_VERSION_HEX >= 0x030d0000
    (void)view;
    return sonde_copy.state._status.holds_gil;
#elif PY_VERSION_HEX >= 0x030c0000
    (void)view;
    return sonde_copy.state._status.active;
#else
    return (uintptr_t)_PyThreadState_UncheckedGet() == view->state;
#endif
}

static int is_same_thread(const sonde_view *view)
{
    return (uintptr_t)sonde_copy.state.interp == view->interpreter && sonde_copy.state.id == view->id;
}

static int is_top_unchanged(sonde_view *view, const sonde_stack *stack)
{
    static sonde_stack second;
    int fresh = 0;
    if (sonde_stack_copy_top(view) != 0 || !is_same_thread(view) ||
        walk(&second, NULL, &fresh) < 0 || fresh || second.depth != stack->depth)
        return 0;
    for (int i = 0; i < second.depth; i++)
        if (second.frame[i].code != stack->frame[i].code)
            return 0;
    return 1;
}

#if PY_VERSION_HEX < 0x030b0000

/* Where the kernel's thread id stands in glibc's struct behind pthread_self(). */
static size_t tid_offset;

static int find_tid_offset(void)
{
    enum { MOST = 2048 };
    static char head[MOST];
    uint32_t tid = (uint32_t)sonde_find_tid();
    for (size_t bytes = MOST; bytes >= 256; bytes /= 2) {
        if (sonde_read_memory(head, (uintptr_t)pthread_self(), bytes) < 0)
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
    return sonde_read_memory(&tid, state->thread_id + tid_offset, 4) < 0 ? 0 : tid;
}

#else

static int find_tid_offset(void) { return 0; }
static uint32_t tid_of(const PyThreadState *state) { return (uint32_t)state->native_thread_id; }

#endif

/* Do we know the outermost frame? A frame that is just being made may not know its caller yet,
 * and then looks like the first one of its thread. A new first frame (greenlets have their own)
 * is believed when it is seen twice in a row. */
static int is_root_known(sonde_view *view, const sonde_stack *stack)
{
    uint32_t root = stack->is_cut ? view->root : stack->frame[stack->depth - 1].code->id;
    int is_known = root == view->root || root == view->next_root;
    view->next_root = root;
    if (is_known)
        view->root = root;
    return is_known;
}

/* Try once; SONDE_FRAMES_TORN asks for another try. */
static enum sonde_frames_result read_once(sonde_view *view, sonde_stack *stack, const sonde_intern_handle *text)
{
    int status = sonde_stack_copy_top(view), fresh = 0;
    if (status == -EFAULT || (status == 0 && !is_same_thread(view)))
        return SONDE_FRAMES_GONE;
    if (status < 0)
        return SONDE_FRAMES_TORN;
    stack->holds_gil = holds_gil(view);
    stack->tid = tid_of(&sonde_copy.state);
    stack->turn = sonde_copy.state.context_ver;
    if (sonde_copy.current == 0)
        return SONDE_FRAMES_EMPTY;
    sonde_outside_expect(view);
    if (sonde_stack_copy_rest(view) < 0) {
        sonde_outside_keep(view); /* the next try reads them in one go */
        return SONDE_FRAMES_TORN;
    }
    int walked = walk(stack, text, &fresh);
    int is_sound = walked == 0 && sonde_outside_hold(view, !fresh) &&
                   (!fresh || is_top_unchanged(view, stack));
    if (fresh && !is_sound)
        for (int i = 0; i < stack->depth; i++)
            sonde_store_relaxed(&stack->frame[i].code->alive, 0);
    /* Reading code objects takes long, and so does reading frames one by one; now that it is known where
     * they are, the next try will succeed. */
    if (walked == 0)
        sonde_outside_keep(view);
    if (fresh || !is_sound)
        return SONDE_FRAMES_TORN;
    if (stack->depth && !is_root_known(view, stack))
        return SONDE_FRAMES_TORN;
    return stack->depth ? SONDE_FRAMES_OK : SONDE_FRAMES_EMPTY;
}

enum sonde_frames_result sonde_frames_read(sonde_view *view, sonde_stack *stack, const sonde_intern_handle *text,
                                  int is_strict)
{
    sonde_copy.is_strict = is_strict;
    sonde_codes_trim(); /* not in between: the stack points to what is known */
    enum sonde_frames_result found = SONDE_FRAMES_TORN;
    int64_t begin_ns = sonde_clock_ns();
    for (int i = 0; i < TRIES + MORE_TRIES && found == SONDE_FRAMES_TORN; i++) {
        if (i >= TRIES && sonde_clock_ns() - begin_ns > LONG_NS)
            return found;
        found = read_once(view, stack, text);
    }
    return found;
}

/* Put the frames below a stack, as far as there is room. */
static void join(sonde_stack *stack, const sonde_stack *below)
{
    int room = SONDE_MAX_DEPTH - stack->depth;
    int n = below->depth < room ? below->depth : room;
    for (int i = 0; i < below->ends_n && below->ends[i] <= n && stack->ends_n < SONDE_MAX_DEPTH; i++)
        stack->ends[stack->ends_n++] = (uint16_t)(stack->depth + below->ends[i]);
    memcpy(&stack->frame[stack->depth], below->frame, (size_t)n * sizeof *below->frame);
    stack->depth += n;
    stack->is_cut = below->is_cut || n < below->depth;
    stack->holds_gil |= below->holds_gil;
}

enum sonde_frames_result sonde_frames_read_both(sonde_view *view, sonde_view *inner, sonde_stack *stack,
                                                const sonde_intern_handle *text, int is_strict,
                                                int *is_inner)
{
    static sonde_stack outer; /* too large for the thread's stack */
    sonde_thread_entry entry;
    enum sonde_frames_result found = sonde_frames_read(inner, stack, text, is_strict);
    *is_inner = found == SONDE_FRAMES_OK;
    if (found == SONDE_FRAMES_TORN)
        return found;
    if (!*is_inner)
        return sonde_frames_read(view, stack, text, is_strict);
    if (stack->is_cut)
        return found;
    found = sonde_frames_read(view, &outer, text, is_strict);
    if (found == SONDE_FRAMES_OK)
        join(stack, &outer);
    else if (found != SONDE_FRAMES_EMPTY)
        return found;
    /* Its outer frames did not move if it was inside all the time. */
    int is_still = sonde_frames_entry(inner->state, inner->interpreter, &entry) == 0 &&
                   entry.id == inner->id && entry.has_frames;
    return is_still ? SONDE_FRAMES_OK : SONDE_FRAMES_TORN;
}

/* ---- the list of threads --------------------------------------------------------------- */

uintptr_t sonde_frames_head(void)
{
    /* A plain load; the main interpreter outlives the sampler. */
    return (uintptr_t)PyInterpreterState_ThreadHead(PyInterpreterState_Main());
}

static int has_frames(const PyThreadState *state)
{
#if HAS_CFRAME
    uintptr_t current = 0;
    uintptr_t word = (uintptr_t)state->cframe + offsetof(_PyCFrame, current_frame);
    return state->cframe != NULL && sonde_read_memory(&current, word, sizeof current) == 0 && current != 0;
#elif PY_VERSION_HEX >= 0x030d0000
    return state->current_frame != NULL && (uintptr_t)state->current_frame != find_bottom(state);
#else
    return state->frame != NULL;
#endif
}

int sonde_frames_entry(uintptr_t address, uintptr_t interpreter, sonde_thread_entry *entry)
{
    static PyThreadState state;
    int status = sonde_read_memory(&state, address, sizeof state);
    if (status < 0)
        return status;
    if ((uintptr_t)state.interp != interpreter)
        return -ESRCH;
    int is_main = state.interp == PyInterpreterState_Main(); /* nobody asks that of its threads */
    *entry = (sonde_thread_entry){address, (uintptr_t)state.next, state.id, tid_of(&state),
                                  is_main || has_frames(&state)};
    return 0;
}

int sonde_frames_wants_gil(uintptr_t state)
{
#if PY_VERSION_HEX >= 0x030f0000
    int requested = 0;
    uintptr_t word = state + offsetof(PyThreadState, gil_requested);
    return sonde_read_memory(&requested, word, sizeof requested) == 0 && requested != 0;
#else
    (void)state;
    return 0;
#endif
}

int sonde_frames_prepare(void)
{
    char byte;
    int status = sonde_read_memory(&byte, (uintptr_t)&status, 1);
    if (status < 0)
        return status; /* the kernel or a sandbox forbids it */
    if (find_tid_offset() < 0)
        return -ENOSYS;
    sonde_codes_watch();
    return 0;
}

#endif
