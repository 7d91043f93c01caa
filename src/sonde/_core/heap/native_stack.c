/* Native functions of a sampled allocation: see native_stack.h.
 *
 * The thread follows its own stack, which stands still meanwhile: the way from function to function is what a
 * process outside of the job has said about their code. The first sample of a function comes before that process
 * was asked. As it may be the only one, and stand for a gigabyte, the top of its stack is kept until the answer is there.
 */
#include "heap/native_stack.h"
#include "kernel/code_range.h"
#include "kernel/fork.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define PATIENCE_NS 300000000000 /* for an answer: whoever gives it may have to be started first */
#define LEAST_NS 100000000      /* between two looks for one; twice that after each in vain */
#define MOST_NS 1000000000
enum { MOST_LATE = 256, PAGE = 4096, LATE_BYTES = 2 * PAGE };

typedef struct {
    sonde_late_block block; /* address 0: free */
    int is_outside;
    int64_t t_ns;
    uint64_t unknown; /* the address at which the way was not known */
    uint32_t asked;   /* questions about it so far */
} late_stack;

typedef uint8_t stack_top[offsetof(sonde_stack_bytes, stack) + LATE_BYTES];

static sonde_known_code_map code;
static sonde_range own_code;
static sonde_stack_bytes stack; /* large, and used by one thread at a time, as all of this */
static sonde_native_path path;
static int was_outside; /* that thread ran no Python */
static late_stack late[MOST_LATE];
static stack_top *tops; /* of those; mapped once they are wanted, for all processes would have them otherwise */
SONDE_CHANGED_IN_CHILD static uint32_t late_n; /* atomic */
static int64_t due_ns;                         /* atomic: when late stacks are next looked at */
static int64_t break_ns;
static int looked; /* so many late stacks in this look */
static sonde_native_stack_sums sums;

static void forget_in_child(void) { SONDE_RESET(late_n, 0); }

SONDE_IN_CHILD(forget_in_child)

int sonde_native_stack_open(PyObject *file)
{
    sonde_native_stack_close();
    if (tops == NULL) { /* never unmapped: another thread may be about to look at one */
        void *mapped = mmap(NULL, MOST_LATE * sizeof *tops, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED)
            return -errno;
        tops = mapped;
    }
    int status = sonde_find_object((const void *)sonde_native_stack_open, &own_code);
    return status < 0 ? status : sonde_code_map_open(&code, file);
}

void sonde_native_stack_close(void)
{
    sonde_code_map_close(&code);
    for (int i = 0; i < MOST_LATE; i++)
        late[i].block.address = 0;
    sonde_store_relaxed(&late_n, 0);
    sums = (sonde_native_stack_sums){0, 0};
}

/* Return how many functions are our own hooks, and those of Python's allocators that stand between them. */
static int count_own(void)
{
    for (int n = path.depth; n > 0; n--)
        if (path.code[n - 1]->begin >= own_code.begin && path.code[n - 1]->begin < own_code.end)
            return n;
    return 0;
}

/* Return the node of the stack that was followed, below `node`; 0 if it is not known. */
static uint32_t put(sonde_nodes_handle *nodes, uint32_t node, int is_outside)
{
    if (path.end != (is_outside ? SONDE_WALK_BOTTOM : SONDE_WALK_PYTHON))
        return 0;
    return sonde_native_put(nodes, node, &path, count_own());
}

uint32_t sonde_native_stack_find(sonde_nodes_handle *nodes, const sonde_thread_place *begin, uint32_t node,
                                 int is_outside, int *is_late)
{
    *is_late = 0;
    if (code.table == NULL)
        return node;
    was_outside = is_outside;
    sonde_code_map_renew(&code);
    stack.pc = begin->pc;
    stack.sp = begin->sp;
    stack.fp = begin->fp;
    stack.link = 0;
    stack.bytes = PAGE - stack.sp % PAGE; /* we are on this page: it is there */
    memcpy(stack.stack, (const void *)(uintptr_t)stack.sp, stack.bytes);
    sonde_native_walk(&code, &stack, 1, &path);
    uint32_t below = put(nodes, node, is_outside);
    sums.found += below != 0;
    sums.lost += below == 0;
    if (below != 0)
        return below;
    *is_late = path.end == SONDE_WALK_UNKNOWN;
    return node;
}

/* ---- blocks whose functions are not known yet ------------------------------------------------------------ */

static void forget(late_stack *one)
{
    one->block.address = 0;
    sonde_store_relaxed(&late_n, late_n - 1);
}

/* Return a free place; else that of the smallest block, if it is smaller than this one. */
static late_stack *find_room(int64_t bytes)
{
    late_stack *found = &late[0];
    for (int i = 0; i < MOST_LATE; i++) {
        if (late[i].block.address == 0)
            return &late[i];
        if (late[i].block.bytes < found->block.bytes)
            found = &late[i];
    }
    if (found->block.bytes >= bytes)
        return NULL;
    forget(found);
    return found;
}

static void restore(const late_stack *one)
{
    const uint8_t *top = tops[one - late];
    memcpy(&stack, top, offsetof(sonde_stack_bytes, stack));
    memcpy(&stack, top, offsetof(sonde_stack_bytes, stack) + stack.bytes);
}

/* Ask about the one that was asked about least; of several about the largest. */
static void ask(void)
{
    late_stack *found = NULL;
    if (sonde_machine_waits(code.table, SONDE_ASKED_BY_HEAP))
        return;
    for (int i = 0; i < MOST_LATE; i++) {
        late_stack *one = &late[i];
        if (one->block.address != 0 &&
            (found == NULL || one->asked < found->asked ||
             (one->asked == found->asked && one->block.bytes > found->block.bytes)))
            found = one;
    }
    if (found == NULL)
        return;
    found->asked++;
    restore(found);
    sonde_machine_ask(code.table, SONDE_ASKED_BY_HEAP, &stack, found->unknown);
}

void sonde_native_stack_keep(const sonde_late_block *block)
{
    late_stack *one = find_room(block->bytes);
    if (one == NULL)
        return;
    one->block = *block;
    one->is_outside = was_outside;
    one->asked = 0;
    one->unknown = path.unknown;
    one->t_ns = sonde_clock_ns();
    break_ns = LEAST_NS;
    sonde_store_relaxed(&due_ns, one->t_ns + break_ns);
    while (stack.bytes + PAGE <= LATE_BYTES && sonde_stack_bytes_extend(&stack))
        ;
    stack.bytes = stack.bytes < LATE_BYTES ? stack.bytes : LATE_BYTES;
    memcpy(tops[one - late], &stack, offsetof(sonde_stack_bytes, stack) + stack.bytes);
    sonde_store_relaxed(&late_n, late_n + 1);
    ask();
}

void sonde_native_stack_type(uintptr_t address, uint32_t before, uint32_t node, const sonde_frame_key *type)
{
    for (int i = 0; i < MOST_LATE && late_n > 0; i++)
        if (late[i].block.address == address && late[i].block.node == before) {
            late[i].block.type = *type;
            late[i].block.node = node;
        }
}

/* Follow the stack of a late block once more. Returns the node of its functions, or 0. */
static uint32_t try_again(sonde_nodes_handle *nodes, late_stack *one)
{
    restore(one);
    sonde_native_walk(&code, &stack, 0, &path);
    uint32_t node = put(nodes, one->block.stack, one->is_outside);
    if (node != 0 && one->block.type.func != 0)
        node = sonde_nodes_put(nodes, node, &one->block.type);
    one->unknown = path.unknown;
    if (node != 0 || path.end != SONDE_WALK_UNKNOWN || sonde_clock_ns() - one->t_ns > PATIENCE_NS)
        forget(one);
    return node;
}

void sonde_native_stack_look(void)
{
    if (code.table != NULL)
        sonde_code_map_renew(&code);
    break_ns = 2 * break_ns < MOST_NS ? 2 * break_ns : MOST_NS;
    sonde_store_relaxed(&due_ns, sonde_clock_ns() + break_ns);
    looked = 0;
}

uint32_t sonde_native_stack_next(sonde_nodes_handle *nodes, sonde_late_block *block)
{
    if (code.table == NULL || late_n == 0)
        return 0;
    while (looked < MOST_LATE) {
        late_stack *one = &late[looked++];
        *block = one->block;
        uint32_t node = block->address == 0 ? 0 : try_again(nodes, one);
        if (node != 0) {
            sums.found++;
            sums.lost--;
            break_ns = LEAST_NS;
            return node;
        }
    }
    ask();
    return 0;
}

int sonde_native_stack_is_due(void)
{
    return sonde_load_relaxed(&late_n) > 0 && sonde_clock_ns() > sonde_load_relaxed(&due_ns);
}

sonde_native_stack_sums sonde_native_stack_count(void) { return sums; }
