/* Puts the native frames of running threads into their samples: see native_frames.h.
 *
 * The thread stands still only while its Python frames and the top of its stack are copied. The way from
 * function to function is then found in the copy, by what another process has said about that code.
 * Where it does not end at Python's interpreter, nothing of it is believed.
 */
#define _GNU_SOURCE 1
#include "stacks/native_frames.h"
#include "kernel/read_memory.h"
#include "kernel/thread.h"
#include "kernel/thread_place.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { PIECE = 4096, PATIENCE = 20, SELDOM = 8 };
/* On aarch64 an address may be signed in its upper bits. */
#define PLACE_MASK (((uint64_t)1 << 48) - 1)
#if defined(__aarch64__)
enum { HAS_LINK = 1 };
#else
enum { HAS_LINK = 0 };
#endif

static sonde_stack_bytes copy; /* only one thread samples */

int sonde_native_open(sonde_native_frames *native, PyObject *map)
{
    sonde_machine_table *table = ((MapObject *)map)->mem;
    int status = sonde_machine_verify(table, ((MapObject *)map)->bytes);
    if (status == 0)
        status = sonde_place_prepare();
    if (status < 0)
        return status;
    uint32_t entries = table->entries;
    if (sonde_machine_bytes(entries) > (uint64_t)((MapObject *)map)->bytes)
        return -EBADMSG; /* it has changed since */
    *native = (sonde_native_frames){.known = malloc(entries * sizeof *native->known), .entries = entries};
    if (native->known == NULL)
        return -ENOMEM;
    native->table = table;
    native->map = Py_NewRef(map);
    return 0;
}

void sonde_native_close(sonde_native_frames *native)
{
    if (native->table == NULL)
        return;
    sonde_place_rest();
    free(native->known);
    Py_CLEAR(native->map);
    native->known = NULL;
    native->table = NULL;
}

/* ---- copying --------------------------------------------------------------------------------- */

static void keep_place(const sonde_thread_place *place)
{
    copy.pc = place->pc;
    copy.sp = place->sp;
    copy.fp = place->fp;
    copy.link = place->link;
}

/* Has the thread a processor now? One that only waits for a processor may be inside a call of the kernel, which
 * a signal would interrupt. */
static int is_on_cpu(uint32_t tid)
{
    int64_t first_ns = sonde_thread_cpu(tid);
    return sonde_thread_cpu(tid) != first_ns;
}

int sonde_native_hold(sonde_native_frames *native, sonde_sampled_thread *thread)
{
    if (native->table == NULL || thread->cpu_ns < 0)
        return 0;
    /* A thread that never answers has blocked the signal: it is asked only now and then. */
    if (thread->unanswered >= PATIENCE && thread->unanswered++ % SELDOM != 0)
        return 0;
    if (sonde_wait_find(thread->tid).kind != SONDE_WAIT_NONE)
        return 0;
    sonde_thread_place place;
    int is_on = is_on_cpu(thread->tid);
    if (!is_on || sonde_place_ask(thread->tid, SONDE_ANSWER_NS, &place) < 0) {
        thread->unanswered += (uint32_t)is_on;
        native->lost++;
        return 0;
    }
    keep_place(&place);
    thread->unanswered = 0;
    return 1;
}

/* Page by page: where the stack ends is not known. */
static void copy_stack(void)
{
    uint64_t at = copy.sp, piece = PIECE - at % PIECE;
    copy.bytes = 0;
    while (copy.bytes + piece <= sizeof copy.stack &&
           sonde_read_memory(copy.stack + copy.bytes, at + copy.bytes, piece) == 0) {
        copy.bytes += piece;
        piece = PIECE;
    }
}

int sonde_native_release(sonde_native_frames *native)
{
    copy_stack();
    int is_one = sonde_place_let_go();
    native->lost += !is_one;
    return is_one;
}

/* ---- from function to function ----------------------------------------------------------------- */

/* Return the place of the last piece that begins at or before this address, plus 1. */
static uint32_t find_after(const sonde_native_frames *native, uint64_t address)
{
    uint32_t low = 0, high = native->known_n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (native->known[middle].begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Return how many of the new pieces follow each other, with no other between them: those of a function. */
static uint32_t count_run(const sonde_native_frames *native, uint32_t at, uint32_t count)
{
    uint64_t limit = at < native->known_n ? native->known[at].begin : UINT64_MAX;
    const sonde_machine_code *code = native->table->code;
    uint32_t next = native->read_n + 1;
    while (next < count && code[next].begin > code[next - 1].begin && code[next].begin < limit)
        next++;
    return next - native->read_n;
}

static void read_table(sonde_native_frames *native)
{
    uint32_t count = sonde_load_acquire(&native->table->count); /* acquire: those pieces are complete */
    if (count > native->entries)
        count = native->entries;
    while (native->read_n < count) {
        const sonde_machine_code *code = &native->table->code[native->read_n];
        uint32_t at = find_after(native, code->begin), n = count_run(native, at, count);
        memmove(&native->known[at + n], &native->known[at], (native->known_n - at) * sizeof *code);
        memcpy(&native->known[at], code, n * sizeof *code);
        native->known_n += n;
        native->read_n += n;
    }
}

static const sonde_machine_code *find_code(const sonde_native_frames *native, uint64_t address)
{
    uint32_t after = find_after(native, address);
    const sonde_machine_code *code = after == 0 ? NULL : &native->known[after - 1];
    return code != NULL && address < code->end ? code : NULL;
}

static int read_word(uint64_t address, uint64_t *word)
{
    if (address < copy.sp || address - copy.sp + 8 > copy.bytes)
        return 0;
    memcpy(word, copy.stack + (address - copy.sp), 8);
    return 1;
}

/* Go from a function to its caller where there is no table: by the frame pointers. */
static int follow_chain(sonde_thread_place *at, int is_first)
{
    uint64_t fp = at->fp;
    if (HAS_LINK && is_first) {
        at->pc = at->link; /* code without tables is usually a function that calls no other */
        at->sp = fp;
        return at->pc != 0;
    }
    if (!read_word(fp, &at->fp) || !read_word(fp + 8, &at->pc))
        return 0;
    at->sp = fp + 16;
    return 1;
}

#if defined(__x86_64__)
/* Go from a handler to where its signal came, unless that is on another stack. */
static int leave_handler(sonde_thread_place *at)
{
    const size_t words = offsetof(ucontext_t, uc_mcontext.gregs);
    sonde_thread_place before = {0};
    if (!read_word(at->sp + words + REG_RIP * 8, &before.pc) || !read_word(at->sp + words + REG_RSP * 8, &before.sp) ||
        !read_word(at->sp + words + REG_RBP * 8, &before.fp))
        return 0;
    if (before.sp < copy.sp || before.sp - copy.sp >= copy.bytes)
        return 0;
    *at = before;
    at->pc++; /* this is no place to which a call returns */
    return 1;
}
#else
static int leave_handler(sonde_thread_place *at)
{
    (void)at;
    return 0;
}
#endif

/* Go from a function to its caller. Returns 0 if the way ends here. */
static int step(sonde_thread_place *at, const sonde_machine_code *code, int is_first)
{
    if (code->from == SONDE_FROM_CHAIN)
        return follow_chain(at, is_first);
    if (code->from == SONDE_FROM_SIGNAL)
        return leave_handler(at);
    uint64_t caller = (code->from == SONDE_FROM_STACK ? at->sp : at->fp) + (uint64_t)(int64_t)code->caller;
    uint64_t frame = caller;
    if (code->from == SONDE_FROM_SAVED) {
        frame = at->fp;
        if (!read_word(caller, &caller))
            return 0;
    }
    if (caller < at->sp || (caller == at->sp && !is_first))
        return 0;
    if (code->place != SONDE_KEPT) {
        if (!read_word(caller + (uint64_t)(int64_t)code->place, &at->pc))
            return 0;
    } else if (HAS_LINK && is_first && at->link != 0) /* 0: it is not known */
        at->pc = at->link;
    else
        return 0;
    if (code->frame != SONDE_KEPT && !read_word(frame + (uint64_t)(int64_t)code->frame, &at->fp))
        return 0;
    at->sp = caller;
    return 1;
}

/* Find the functions that the thread is in, the innermost first. Returns how many; -1 if that is not
 * known. */
static int walk(sonde_native_frames *native, const sonde_machine_code *found[SONDE_NATIVE_DEPTH])
{
    sonde_thread_place at = {copy.pc, copy.sp, copy.fp, copy.link};
    for (int n = 0; n < SONDE_NATIVE_DEPTH; n++) {
        /* A caller is where it goes on after the call, which may be in the next function. */
        uint64_t address = (at.pc & PLACE_MASK) - (n > 0);
        const sonde_machine_code *code = find_code(native, address);
        if (address < PIECE)
            return -1; /* no code lies there: the way led astray, and nobody need be asked */
        if (code == NULL) {
            sonde_machine_ask(native->table, &copy, address);
            return -1;
        }
        if (code->kind == SONDE_CODE_EVAL)
            return n;
        found[n] = code;
        if (code->kind == SONDE_CODE_UNKNOWN || !step(&at, code, n == 0))
            return -1;
    }
    return -1;
}

uint32_t sonde_native_extend(sonde_native_frames *native, sonde_nodes_handle *nodes, uint32_t node)
{
    const sonde_machine_code *found[SONDE_NATIVE_DEPTH];
    read_table(native);
    int n = walk(native, found);
    native->lost += n < 0;
    native->found += n >= 0;
    while (n > 0 && found[n - 1]->kind == SONDE_CODE_CALLS)
        n--;
    for (uint32_t below = node; n > 0; n--, node = below) {
        sonde_frame_key key = {.func = found[n - 1]->func, .file = found[n - 1]->file,
                               .text_hash = found[n - 1]->text_hash};
        below = sonde_nodes_put(nodes, node, &key);
        if (below == 0)
            return node; /* it is full: the Python function has the time */
    }
    return node;
}
