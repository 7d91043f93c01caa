/* `with` blocks: see with_blocks.h.
 *
 * While a frame is in a `with` block, the function that ends the block lies among the values of the
 * frame. Where it lies is known from the code: for each instruction there is a handler of exceptions, and
 * how many values lie below it (before 3.11 the frame has a stack of blocks that says the same). The
 * handler of an inner block belongs to the block around it. */
#define _GNU_SOURCE 1
#include "stacks/with_blocks.h"
#include "stacks/frame_layout.h"
#include "kernel/read_memory.h"

#if SONDE_HAS_LOCKS

#include <string.h>

#define MOST_FRAMES 128  /* of a stack, from the innermost on */
#define MOST_BLOCKS 20   /* of a function: CPython's own limit, and each of them may have two handlers */
#define MOST_TABLE 8192  /* bytes of a table of handlers */
#define MOST_VALUES 64   /* of a frame, without its variables */

typedef struct {
    int depth;    /* values that lie below */
    int32_t unit; /* the instruction that handles exceptions; it has the line of the `with` */
} handler;

/* From 3.14 on the lowest bits of a value say who owns it. */
static uintptr_t strip(uintptr_t value) { return value & ~(uintptr_t)3; }

#if PY_VERSION_HEX >= 0x030b0000

static uint8_t table[MOST_TABLE]; /* only the native thread uses it */
static size_t table_bytes;

static int read_table(const PyCodeObject *code)
{
    PyVarObject head;
    uintptr_t at = (uintptr_t)code->co_exceptiontable;
    if (sonde_read_memory(&head, at, sizeof head) < 0 || head.ob_base.ob_type != &PyBytes_Type ||
        head.ob_size < 0 || head.ob_size > MOST_TABLE)
        return -1;
    table_bytes = (size_t)head.ob_size;
    return table_bytes ? sonde_read_memory(table, at + offsetof(PyBytesObject, ob_sval), table_bytes) : 0;
}

/* Read a number of six bits to a byte, the highest first. */
static uint32_t take_number(size_t *at)
{
    uint32_t number = 0;
    int more = 1;
    while (more && *at < table_bytes) {
        uint8_t byte = table[(*at)++];
        number = number << 6 | (byte & 63);
        more = byte & 64;
    }
    return number;
}

static int find_handler(int64_t unit, handler *found)
{
    size_t at = 0;
    while (at < table_bytes) {
        int64_t begin = take_number(&at), length = take_number(&at), target = take_number(&at);
        uint32_t depth = take_number(&at) >> 1;
        if (unit < begin)
            return 0;
        if (unit < begin + length) {
            *found = (handler){(int)depth, (int32_t)target};
            return 1;
        }
    }
    return 0;
}

static int list_handlers(const raw_frame *frame, const PyCodeObject *code, handler *list)
{
    int n = 0;
    int64_t unit = unit_of(frame);
    if (read_table(code) < 0)
        return 0;
    while (n < 2 * MOST_BLOCKS && find_handler(unit, &list[n]) && list[n].unit != unit)
        unit = list[n++].unit;
    return n;
}

static int count_locals(const PyCodeObject *code) { return code->co_nlocalsplus; }
static uintptr_t find_values(uintptr_t frame) { return frame + offsetof(raw_frame, localsplus); }
static int read_frame(raw_frame *to, uintptr_t from) { return sonde_read_memory(to, from, FRAME_BYTES); }

#else

static int list_handlers(const raw_frame *frame, const PyCodeObject *code, handler *list)
{
    int n = 0;
    (void)code;
    for (int i = frame->f_iblock; i > 0 && i <= MOST_BLOCKS; i--)
        list[n++] = (handler){frame->f_blockstack[i - 1].b_level, frame->f_blockstack[i - 1].b_handler};
    return n;
}

/* Before 3.11 variables and values lie behind the frame, in this order. */
static int count_locals(const PyCodeObject *code)
{
    PyVarObject cells = {.ob_size = 0}, frees = {.ob_size = 0};
    if (sonde_read_memory(&cells, (uintptr_t)code->co_cellvars, sizeof cells) < 0 ||
        sonde_read_memory(&frees, (uintptr_t)code->co_freevars, sizeof frees) < 0)
        return -1;
    return code->co_nlocals + (int)cells.ob_size + (int)frees.ob_size;
}

static uintptr_t find_values(uintptr_t frame) { return frame + offsetof(raw_frame, f_localsplus); }
static int read_frame(raw_frame *to, uintptr_t from) { return sonde_read_memory(to, from, sizeof *to); }

#endif

/* How many values of the innermost frame are in use: not known before 3.14, where those that are left over
 * from before are told apart by the word that the kernel names. */
static int count_values(uintptr_t frame, const raw_frame *copy, const PyCodeObject *code, int locals)
{
    int most = code->co_stacksize;
#if PY_VERSION_HEX >= 0x030e0000
    uintptr_t first = find_values(frame) + (size_t)locals * sizeof(uintptr_t);
    intptr_t used = ((intptr_t)(uintptr_t)copy->stackpointer - (intptr_t)first) / (intptr_t)sizeof(uintptr_t);
    most = used < 0 ? 0 : used < most ? (int)used : most;
#else
    (void)frame;
    (void)copy;
    (void)locals;
#endif
    return most < MOST_VALUES ? most : MOST_VALUES;
}

static int read_code(uintptr_t address, PyCodeObject *code)
{
    return sonde_read_memory(code, address, sizeof *code) < 0 || !Py_IS_TYPE((PyObject *)code, &PyCode_Type)
               ? -1 : 0;
}

static int find_in_frame(uintptr_t frame, const raw_frame *copy, const sonde_lock *lock, sonde_with_place *place)
{
    handler handlers[2 * MOST_BLOCKS];
    PyCodeObject code;
    int fresh = 0;
    if (read_code(code_of(copy), &code) < 0)
        return 0;
    const sonde_code *known = sonde_codes_get(code_of(copy), NULL, &fresh);
    int handlers_n = list_handlers(copy, &code, handlers), locals = count_locals(&code);
    for (int i = 0, last = code.co_stacksize + 1; i < handlers_n && known != NULL && locals >= 0; i++) {
        int depth = handlers[i].depth;
        /* A handler has a handler of its own, for which more values would lie there; now others do: those
         * of a `with` that is just being entered. Only what lies lower is of a block around this one. */
        if (depth >= last)
            continue;
        last = depth;
        uintptr_t values[2] = {0, 0}; /* the two uppermost */
        int n = depth < 2 ? depth : 2;
        uintptr_t from = find_values(frame) + (size_t)(locals + depth - n) * sizeof *values;
        sonde_lock found;
        if (n < 1 || depth > code.co_stacksize || (uint32_t)handlers[i].unit >= known->units ||
            sonde_read_memory(&values[2 - n], from, (size_t)n * sizeof *values) < 0)
            continue;
        if (sonde_lock_read_with(strip(values[0]), strip(values[1]), &found) == 0 &&
            found.object == lock->object) {
            *place = (sonde_with_place){frame, known->key.func, known->key.file,
                                        sonde_code_line(known, (uint32_t)handlers[i].unit)};
            return 1;
        }
    }
    return 0;
}

/* Return the innermost frame of a thread that is not one of the interpreter's own; 0 if there is none. */
static uintptr_t find_first(const sonde_view *view, raw_frame *copy)
{
    uintptr_t frame = 0;
    if (sonde_read_memory(&frame, find_current_word(view), sizeof frame) < 0 || !may_be_frame(frame) ||
        read_frame(copy, frame) < 0 || is_shim(copy))
        return 0;
    return frame;
}

int sonde_with_find(const sonde_view *view, const sonde_lock *lock, sonde_with_place *place)
{
    raw_frame copy;
    uintptr_t frame = find_first(view, &copy);
    for (int i = 0; i < MOST_FRAMES && frame; i++) {
        if (!is_shim(&copy) && find_in_frame(frame, &copy, lock, place))
            return 1;
        frame = previous_of(&copy);
        if (!may_be_frame(frame) || read_frame(&copy, frame) < 0)
            break;
    }
    return 0;
}

int sonde_with_wanted(const sonde_view *view, uintptr_t word, sonde_lock *lock)
{
    raw_frame copy;
    PyCodeObject code;
    uintptr_t values[MOST_VALUES], frame = find_first(view, &copy);
    if (frame == 0 || read_code(code_of(&copy), &code) < 0)
        return 0;
    int locals = count_locals(&code);
    int n = locals < 0 ? 0 : count_values(frame, &copy, &code, locals);
    uintptr_t from = find_values(frame) + (size_t)(locals < 0 ? 0 : locals) * sizeof *values;
    if (n == 0 || sonde_read_memory(values, from, (size_t)n * sizeof *values) < 0)
        return 0;
    for (int i = n - 1; i >= 0; i--)
        if (sonde_lock_read(strip(values[i]), lock) == 0 && sonde_lock_is_awaited(lock, word))
            return 1;
    return 0;
}

#endif
