/* The Python stack of the calling thread, read inside of an allocator.
 *
 * Nothing moves while a thread reads its own frames, so they are read as they are, without a copy.
 * Nothing here may allocate: the allocator that would be asked is the one that called us.
 */
#include "heap/own_stack.h"
#include "stacks/frame_layout.h"
#include "stacks/utf8.h"

#if SONDE_HAS_FRAMES

static uint32_t spread(uint64_t a, uint64_t b) { return (uint32_t)((a ^ b << 32) * 0x9e3779b97f4a7c15u >> 40); }

/* ---- code objects and lines ------------------------------------------------------------- */

static uint32_t take_str(const sonde_stack_home *home, PyObject *str, uint64_t *hash)
{
    static char utf8[SONDE_MOST_CHARS * 4 + 4]; /* large, and used by one thread at a time */
    size_t used = sonde_put_str(utf8, PyUnicode_DATA(str), PyUnicode_KIND(str), (size_t)PyUnicode_GET_LENGTH(str));
    *hash = sonde_hash_bytes(*hash, utf8, used);
    return sonde_intern_put(home->text, utf8, (uint32_t)used);
}

static const sonde_known_code *find_code(sonde_own_stacks *known, const sonde_stack_home *home, uintptr_t address)
{
    sonde_known_code *found = &known->code[spread(address >> 4, 0) & (SONDE_CODE_SLOTS - 1)];
    if (found->address == address)
        return found;
    PyCodeObject *code = (PyCodeObject *)address;
#if PY_VERSION_HEX >= 0x030b0000
    PyObject *name = code->co_qualname;
#else
    PyObject *name = code->co_name;
#endif
    uint64_t hash = SONDE_HASH_SEED;
    uint32_t func = take_str(home, name, &hash), file = take_str(home, code->co_filename, &hash);
    *found = (sonde_known_code){
        .address = address,
        .id = ++known->last_code,
        .key = {func, file, 0, code->co_firstlineno, hash},
    };
    return found;
}

static int32_t find_line(sonde_own_stacks *known, const sonde_known_code *code, uint32_t unit)
{
    sonde_known_line *found = &known->line[spread(code->id, unit) & (SONDE_LINE_SLOTS - 1)];
    if (found->code != code->id || found->unit != unit) {
        int line = PyCode_Addr2Line((PyCodeObject *)code->address, (int)unit * 2);
        *found = (sonde_known_line){code->id, unit, line < 0 ? code->key.first_line : line};
    }
    return found->line;
}

void sonde_own_stack_forget(sonde_own_stacks *known, uintptr_t address)
{
    sonde_known_code *found = &known->code[spread(address >> 4, 0) & (SONDE_CODE_SLOTS - 1)];
    if (found->address == address)
        found->address = 0;
}

/* ---- the stack -------------------------------------------------------------------------- */

typedef struct {
    uintptr_t code[SONDE_MAX_DEPTH]; /* the innermost first */
    uint32_t unit[SONDE_MAX_DEPTH];
    int depth, is_cut;
} own_frames;

static void collect(own_frames *found, const PyThreadState *state)
{
    uintptr_t bottom = find_bottom(state);
    found->depth = found->is_cut = 0;
    for (const raw_frame *at = find_innermost(state); at != NULL && (uintptr_t)at != bottom;
         at = (const raw_frame *)previous_of(at)) {
        if (!is_sane(at) || is_shim(at))
            continue;
        if (found->depth == SONDE_MAX_DEPTH) {
            found->is_cut = 1;
            return;
        }
        PyObject *code = (PyObject *)code_of(at);
        int64_t unit = unit_of(at);
        /* From 3.13 on, code of the interpreter's own stands around an __init__; it is named after itself. */
        if (code == NULL || !PyCode_Check(code) ||
            ((PyCodeObject *)code)->co_filename == ((PyCodeObject *)code)->co_name)
            continue;
        found->code[found->depth] = (uintptr_t)code;
        found->unit[found->depth++] = unit < 0 ? 0 : (uint32_t)unit;
    }
}

static uint32_t put_word(sonde_stack_home *home, uint32_t func, uint64_t hash)
{
    sonde_frame_key key = {.func = func, .file = home->empty_text, .text_hash = hash};
    return sonde_nodes_put(&home->nodes, 0, &key);
}

/* Frames that this stack shares with the last one, from the root on, are not looked up again. */
static uint32_t put_all(sonde_own_stacks *known, sonde_stack_home *home, const own_frames *found, uint32_t node)
{
    int is_same = !found->is_cut;
    for (int i = 0; i < found->depth; i++) {
        int at = found->depth - 1 - i;
        const sonde_known_code *code = find_code(known, home, found->code[at]);
        sonde_known_step *step = &known->path[i];
        is_same = is_same && i < known->path_n && step->code == code->id && step->unit == found->unit[at];
        if (is_same) {
            node = step->node;
            continue;
        }
        sonde_frame_key key = code->key;
        key.line = find_line(known, code, found->unit[at]);
        node = sonde_nodes_put(&home->nodes, node, &key);
        known->path_n = i;
        if (node == 0)
            return 0;
        *step = (sonde_known_step){code->id, found->unit[at], node};
    }
    known->path_n = found->is_cut ? 0 : found->depth;
    return node;
}

uint32_t sonde_own_stack(sonde_own_stacks *known, sonde_stack_home *home, PyThreadState *state)
{
    static own_frames found; /* large, and used by one thread at a time */
    found.depth = found.is_cut = 0;
    if (state != NULL)
        collect(&found, state);
    if (found.depth == 0)
        return put_word(home, home->outside_text, 3);
    uint32_t node = 0;
    if (found.is_cut) {
        home->cut++;
        node = put_word(home, home->cut_text, 1);
        if (node == 0)
            return 0;
    }
    return put_all(known, home, &found, node);
}

#endif
