/* From function to function: see native_walk.h.
 *
 * Where the way does not end at Python's interpreter, or where the thread began, nothing of it is believed. */
#define _GNU_SOURCE 1
#include "stacks/native_walk.h"
#include "kernel/read_memory.h"
#include "kernel/thread_place.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { PIECE = 4096 };
/* On aarch64 an address may be signed in its upper bits. */
#define PLACE_MASK (((uint64_t)1 << 48) - 1)
#if defined(__aarch64__)
enum { HAS_LINK = 1 };
#else
enum { HAS_LINK = 0 };
#endif

/* ---- what is known of code ------------------------------------------------------------------------ */

int sonde_code_map_open(sonde_known_code_map *map, PyObject *file)
{
    sonde_machine_table *table = ((MapObject *)file)->mem;
    int status = sonde_machine_verify(table, ((MapObject *)file)->bytes);
    if (status < 0)
        return status;
    uint32_t entries = table->entries;
    if (sonde_machine_bytes(entries) > (uint64_t)((MapObject *)file)->bytes)
        return -EBADMSG; /* it has changed since */
    *map = (sonde_known_code_map){.known = malloc(entries * sizeof *map->known), .entries = entries};
    if (map->known == NULL)
        return -ENOMEM;
    map->table = table;
    map->map = Py_NewRef(file);
    return 0;
}

void sonde_code_map_close(sonde_known_code_map *map)
{
    if (map->table == NULL)
        return;
    free(map->known);
    Py_CLEAR(map->map);
    map->known = NULL;
    map->table = NULL;
}

/* Return the place of the last piece that begins at or before this address, plus 1. */
static uint32_t find_after(const sonde_known_code_map *map, uint64_t address)
{
    uint32_t low = 0, high = map->known_n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (map->known[middle].begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Return how many of the new pieces follow each other, with no other between them: those of a function. */
static uint32_t count_run(const sonde_known_code_map *map, uint32_t at, uint32_t count)
{
    uint64_t limit = at < map->known_n ? map->known[at].begin : UINT64_MAX;
    const sonde_machine_code *code = map->table->code;
    uint32_t next = map->read_n + 1;
    while (next < count && code[next].begin > code[next - 1].begin && code[next].begin < limit)
        next++;
    return next - map->read_n;
}

void sonde_code_map_renew(sonde_known_code_map *map)
{
    uint32_t count = sonde_load_acquire(&map->table->count); /* acquire: those pieces are complete */
    if (count > map->entries)
        count = map->entries;
    while (map->read_n < count) {
        const sonde_machine_code *code = &map->table->code[map->read_n];
        uint32_t at = find_after(map, code->begin), n = count_run(map, at, count);
        memmove(&map->known[at + n], &map->known[at], (map->known_n - at) * sizeof *code);
        memcpy(&map->known[at], code, n * sizeof *code);
        map->known_n += n;
        map->read_n += n;
    }
}

static const sonde_machine_code *find_code(const sonde_known_code_map *map, uint64_t address)
{
    uint32_t after = find_after(map, address);
    const sonde_machine_code *code = after == 0 ? NULL : &map->known[after - 1];
    return code != NULL && address < code->end ? code : NULL;
}

/* ---- the stack -------------------------------------------------------------------------------------- */

int sonde_stack_bytes_extend(sonde_stack_bytes *stack)
{
    uint64_t at = stack->sp + stack->bytes, piece = PIECE - at % PIECE;
    if (stack->bytes + piece > sizeof stack->stack || sonde_read_memory(stack->stack + stack->bytes, at, piece) < 0)
        return 0;
    stack->bytes += piece;
    return 1;
}

typedef struct {
    sonde_stack_bytes *stack;
    int grows;
    sonde_thread_place at;
} walker;

static int read_word(walker *self, uint64_t address, uint64_t *word)
{
    sonde_stack_bytes *stack = self->stack;
    if (address < stack->sp || address - stack->sp > sizeof stack->stack)
        return 0;
    while (address - stack->sp + 8 > stack->bytes)
        if (!self->grows || !sonde_stack_bytes_extend(stack))
            return 0;
    memcpy(word, stack->stack + (address - stack->sp), 8);
    return 1;
}

/* ---- from function to function ----------------------------------------------------------------------- */

/* Go from a function to its caller where there is no table: by the frame pointers. */
static int follow_chain(walker *self, int is_first)
{
    sonde_thread_place *at = &self->at;
    uint64_t fp = at->fp;
    if (HAS_LINK && is_first) {
        at->pc = at->link; /* code without tables is usually a function that calls no other */
        at->sp = fp;
        return at->pc != 0;
    }
    if (!read_word(self, fp, &at->fp) || !read_word(self, fp + 8, &at->pc))
        return 0;
    at->sp = fp + 16;
    return 1;
}

#if defined(__x86_64__)
/* Go from a handler to where its signal came, unless that is on another stack. */
static int leave_handler(walker *self)
{
    const size_t words = offsetof(ucontext_t, uc_mcontext.gregs);
    const sonde_stack_bytes *stack = self->stack;
    uint64_t sp = self->at.sp;
    sonde_thread_place before = {0};
    if (!read_word(self, sp + words + REG_RIP * 8, &before.pc) ||
        !read_word(self, sp + words + REG_RSP * 8, &before.sp) ||
        !read_word(self, sp + words + REG_RBP * 8, &before.fp))
        return 0;
    if (before.sp < stack->sp || before.sp - stack->sp >= stack->bytes)
        return 0;
    self->at = before;
    self->at.pc++; /* this is no place to which a call returns */
    return 1;
}
#else
static int leave_handler(walker *self)
{
    (void)self;
    return 0;
}
#endif

/* Go from a function to its caller. Returns 0 if the way ends here. */
static int step(walker *self, const sonde_machine_code *code, int is_first)
{
    sonde_thread_place *at = &self->at;
    if (code->from == SONDE_FROM_CHAIN)
        return follow_chain(self, is_first);
    if (code->from == SONDE_FROM_SIGNAL)
        return leave_handler(self);
    uint64_t caller = (code->from == SONDE_FROM_STACK ? at->sp : at->fp) + (uint64_t)(int64_t)code->caller;
    uint64_t frame = caller;
    if (code->from == SONDE_FROM_SAVED) {
        frame = at->fp;
        if (!read_word(self, caller, &caller))
            return 0;
    }
    if (caller < at->sp || (caller == at->sp && !is_first))
        return 0;
    if (code->place != SONDE_KEPT) {
        if (!read_word(self, caller + (uint64_t)(int64_t)code->place, &at->pc))
            return 0;
    } else if (HAS_LINK && is_first && at->link != 0) /* 0: it is not known */
        at->pc = at->link;
    else
        return 0;
    if (code->frame != SONDE_KEPT && !read_word(self, frame + (uint64_t)(int64_t)code->frame, &at->fp))
        return 0;
    at->sp = caller;
    return 1;
}

void sonde_native_walk(const sonde_known_code_map *map, sonde_stack_bytes *stack, int grows, sonde_native_path *path)
{
    walker self = {stack, grows, {stack->pc, stack->sp, stack->fp, stack->link}};
    path->end = SONDE_WALK_ASTRAY;
    for (path->depth = 0; path->depth < SONDE_NATIVE_DEPTH; path->depth++) {
        /* A caller is where it goes on after the call, which may be in the next function. */
        uint64_t address = (self.at.pc & PLACE_MASK) - (path->depth > 0);
        const sonde_machine_code *code = find_code(map, address);
        if (address < PIECE)
            return; /* no code lies there: the way led astray, and nobody need be asked */
        if (code == NULL) {
            path->end = SONDE_WALK_UNKNOWN;
            path->unknown = address;
            return;
        }
        if (code->kind == SONDE_CODE_EVAL || code->from == SONDE_FROM_NOWHERE) {
            path->end = code->kind == SONDE_CODE_EVAL ? SONDE_WALK_PYTHON : SONDE_WALK_BOTTOM;
            return;
        }
        path->code[path->depth] = code;
        if (code->kind == SONDE_CODE_UNKNOWN || !step(&self, code, path->depth == 0))
            return;
    }
}

uint32_t sonde_native_put(sonde_nodes_handle *nodes, uint32_t node, const sonde_native_path *path, int innermost)
{
    int n = path->depth;
    while (n > innermost && path->code[n - 1]->kind == SONDE_CODE_CALLS)
        n--;
    for (; n > innermost; n--) {
        const sonde_machine_code *code = path->code[n - 1];
        sonde_frame_key key = {.func = code->func, .file = code->file, .text_hash = code->text_hash};
        node = sonde_nodes_put(nodes, node, &key);
        if (node == 0)
            return 0;
    }
    return node;
}
