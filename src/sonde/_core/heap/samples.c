/* Sampled allocations.
 *
 * The points at which samples are taken lie in the stream of allocated bytes as raindrops do on a
 * road: a block of s bytes is hit with the probability p = 1 - exp(-s / every). One that is hit stands
 * for 1 / p blocks like it, so all sums are right on average, whatever the sizes are.
 */
#define _GNU_SOURCE 1
#include "heap/samples.h"
#include "heap/native_stack.h"
#include "heap/object_type.h"
#include "heap/pace.h"
#include "kernel/fork.h"
#include "kernel/read_memory.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if SONDE_HAS_FRAMES

#define PERIOD_NS 10000000000 /* between two rows of one place */
#define SHORT_NS 1000000000   /* the same at the beginning: a look may last for seconds only */
#define FULL_NS 600000000000  /* after which all places get a row: older ones may have been removed */

enum { NO_TYPE = 1 }; /* the optional column that is NULL */

typedef struct {
    sonde_blocks blocks;
    sonde_own_stacks known;
    uintptr_t newest; /* the block that was drawn last: its object was not there yet */
    uint32_t changed_n;
    uint32_t type_text, lost_node;
    int64_t begin_ns, published_ns, full_ns;
    sonde_heap_sampling_row sums;
} heap_state;

/* Behind the state lie, for each node, a word of `changed`, then a byte of `is_changed`, then the
 * index of the nodes. */
typedef struct {
    heap_state *state; /* NULL: nothing is sampled */
    uint32_t *changed; /* nodes whose sums have changed since they were last written */
    uint8_t *is_changed;
    size_t bytes;
    sonde_heap_files files;
} sonde_heap;

static uint8_t counts[SONDE_FILTER_BYTES];
static const uint8_t nothing[SONDE_FILTER_BYTES]; /* never touched: takes no memory */
SONDE_CHANGED_IN_CHILD static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `heap` and `counts` */
SONDE_CHANGED_IN_CHILD static sonde_heap heap;
SONDE_CHANGED_IN_CHILD __attribute__((aligned(64))) sonde_heap_counts sonde_heap_now = {
    INT64_MAX, INT64_MAX, 0, nothing, {{0}}, 0};

static uint32_t drawn;     /* atomic: a block was drawn since somebody asked */
static pid_t pid;          /* whose heap it is: a child may allocate before it has forgotten it */
static uint32_t *here;     /* a word that a forked child finds empty; NULL: then the process is asked who it is */

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14; the headers of older C libraries lack it */
#endif

/* Never unmapped: another thread may be about to look. */
static uint32_t *map_here(void)
{
    void *mem = mmap(NULL, sizeof *here, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mem == MAP_FAILED)
        return NULL;
    if (madvise(mem, sizeof *here, MADV_WIPEONFORK) == 0)
        return mem;
    munmap(mem, sizeof *here);
    return NULL;
}

static void be_here(void)
{
    pid = getpid();
    if (here == NULL)
        here = map_here();
    if (here != NULL)
        *here = 1;
}

/* Without a system call, which a filter of the program's may forbid by now. */
static int is_here(void) { return here != NULL ? *here != 0 : getpid() == pid; }

static void rest(void)
{
    sonde_pace_end();
    sonde_store_relaxed(&sonde_heap_now.small_left, INT64_MAX);
    sonde_store_relaxed(&sonde_heap_now.large_left, INT64_MAX);
    sonde_store_relaxed(&sonde_heap_now.filter, nothing);
}

static void draw_anew(void)
{
    sonde_store_relaxed(&sonde_heap_now.small_left, sonde_pace_draw());
    sonde_store_relaxed(&sonde_heap_now.large_left, sonde_pace_draw());
    sonde_add_relaxed(&sonde_heap_now.turn, 1);
}

static void leave_to_parent(void)
{
    /* Whoever held the lock is not here; the files are the parent's. */
    rest();
    sonde_heap_now.draws = 0;
    SONDE_RESET(lock, PTHREAD_MUTEX_INITIALIZER);
    heap.state = NULL;
}

SONDE_IN_CHILD(leave_to_parent)

/* ---- sums and rows ------------------------------------------------------------------------ */

static void mark(uint32_t node)
{
    if (heap.is_changed[node - 1])
        return;
    heap.is_changed[node - 1] = 1;
    heap.changed[heap.state->changed_n++] = node;
}

/* Relaxed, here and below: only one thread at a time writes, and a reader must not see half a number. */
static void add_allocated(uint32_t id, int64_t bytes, int64_t blocks)
{
    sonde_node *node = sonde_nodes_at(&heap.files.home.nodes, id);
    sonde_store_relaxed(&allocated_bytes_of(node), allocated_bytes_of(node) + bytes);
    sonde_store_relaxed(&allocated_blocks_of(node), allocated_blocks_of(node) + (uint64_t)blocks);
    mark(id);
}

static void move(sonde_block *block, uint32_t node)
{
    add_allocated(block->node, -block->bytes, -(int64_t)block->blocks);
    add_allocated(node, block->bytes, block->blocks);
    block->node = node;
}

static void add_freed(const sonde_block *block)
{
    sonde_node *node = sonde_nodes_at(&heap.files.home.nodes, block->node);
    sonde_store_relaxed(&freed_bytes_of(node), freed_bytes_of(node) + block->bytes);
    sonde_store_relaxed(&freed_blocks_of(node), freed_blocks_of(node) + block->blocks);
    mark(block->node);
    heap.state->sums.frees++;
}

static void write_place(uint32_t id, int64_t now_ns)
{
    const sonde_nodes_handle *nodes = &heap.files.home.nodes;
    const sonde_node *node = sonde_nodes_at(nodes, id);
    int has_type = node->file == heap.state->type_text && node->parent != 0;
    sonde_heap_row row = {
        .t_ns = now_ns,
        .stack = has_type ? sonde_nodes_at(nodes, node->parent)->hash : node->hash,
        .type = has_type ? node->func : 0,
        .alive_bytes = allocated_bytes_of(node) - freed_bytes_of(node),
        .alive_blocks = (int64_t)allocated_blocks_of(node) - freed_blocks_of(node),
        .allocated_bytes = allocated_bytes_of(node),
        .allocated_blocks = (int64_t)allocated_blocks_of(node),
    };
    uint64_t words[sizeof row / 8] = {0};
    memcpy(words, &row, sizeof row);
    (void)sonde_ring_append(&heap.files.rows, words, has_type ? 0 : NO_TYPE); /* a drop is counted there */
}

static void write_sampling(int64_t now_ns)
{
    sonde_heap_sampling_row *sums = &heap.state->sums;
    uint64_t words[sizeof *sums / 8];
    sums->t_ns = now_ns;
    sums->every_bytes = sonde_pace_every();
    sums->blocks = heap.state->blocks.used;
    sums->stacks = heap.files.home.nodes.count;
    sums->stacks_lost = sonde_load_relaxed(&heap.files.home.nodes.shared->lost);
    sums->cut = heap.files.home.cut;
    sums->native = sonde_native_stack_count().found;
    sums->native_lost = sonde_native_stack_count().lost;
    memcpy(words, sums, sizeof words);
    (void)sonde_ring_append(&heap.files.sampling, words, 0);
}

static void publish(int64_t now_ns)
{
    heap_state *state = heap.state;
    const sonde_nodes_handle *nodes = &heap.files.home.nodes;
    if (!sonde_load_relaxed(&heap.files.page->on))
        return; /* paused: changes stay due */
    int is_full = now_ns - state->full_ns >= FULL_NS;
    for (uint32_t id = 1; is_full && id <= nodes->count; id++)
        if (allocated_blocks_of(sonde_nodes_at(nodes, id)) != 0)
            mark(id);
    for (uint32_t i = 0; i < state->changed_n; i++) {
        write_place(heap.changed[i], now_ns);
        heap.is_changed[heap.changed[i] - 1] = 0;
    }
    state->changed_n = 0;
    state->published_ns = now_ns;
    if (is_full)
        state->full_ns = now_ns;
    write_sampling(now_ns);
}

static int is_due(int64_t now_ns)
{
    int64_t quarter_ns = (now_ns - heap.state->begin_ns) / 4;
    int64_t period_ns = quarter_ns > PERIOD_NS ? PERIOD_NS : quarter_ns > SHORT_NS ? quarter_ns : SHORT_NS;
    return now_ns - heap.state->published_ns >= period_ns;
}

/* ---- types ---------------------------------------------------------------------------------- */

/* An allocator hands out a block before anybody writes an object into it. So the type of a block is
 * read when the next one is drawn; what was freed until then has none. */
static void find_type(void)
{
    char name[SONDE_TYPE_BYTES];
    uintptr_t address = heap.state->newest;
    sonde_block *block = sonde_blocks_find(&heap.state->blocks, address);
    size_t bytes = block == NULL ? 0 : sonde_object_type(address, block->size, name);
    if (bytes == 0)
        return;
    sonde_frame_key key = {
        .func = sonde_intern_put(heap.files.home.text, name, (uint32_t)bytes),
        .file = heap.state->type_text,
        .text_hash = sonde_hash_bytes(SONDE_HASH_SEED, name, bytes),
    };
    uint32_t node = key.func == 0 ? 0 : sonde_nodes_put(&heap.files.home.nodes, block->node, &key);
    if (node == 0)
        return;
    uint32_t before = block->node;
    move(block, node);
    sonde_native_stack_type(address, before, node, &key);
}

static void move_late(void)
{
    sonde_late_block late;
    uint32_t node;
    sonde_native_stack_look();
    while ((node = sonde_native_stack_next(&heap.files.home.nodes, &late)) != 0) {
        sonde_block *block = sonde_blocks_find(&heap.state->blocks, late.address);
        if (block != NULL && block->node == late.node) /* else it was freed meanwhile */
            move(block, node);
    }
}

/* ---- blocks --------------------------------------------------------------------------------- */

static uint32_t find_node(PyThreadState *state)
{
    sonde_stack_home *home = &heap.files.home;
    uint32_t node = sonde_own_stack(&heap.state->known, home, state);
    if (node == 0)
        sonde_add_relaxed(&home->nodes.shared->lost, 1);
    return node == 0 ? heap.state->lost_node : node;
}

/* Return the node of its native functions, or else that of its stack. */
static uint32_t find_native(sonde_late_block *late, const sonde_thread_place *begin, int *is_late)
{
    sonde_nodes_handle *nodes = &heap.files.home.nodes;
    int is_outside = sonde_nodes_at(nodes, late->stack)->func == heap.files.home.outside_text;
    *is_late = 0;
    if (late->stack == heap.state->lost_node)
        return late->stack;
    return sonde_native_stack_find(nodes, begin, late->stack, is_outside, is_late);
}

static void add(uintptr_t address, size_t size, PyThreadState *state, const sonde_thread_place *begin)
{
    int is_late;
    double part = -expm1(-(double)size / (double)sonde_pace_every());
    sonde_block block = {
        .address = address,
        .size = size,
        .bytes = (int64_t)((double)size / part),
        .blocks = (uint32_t)(1 / part + sonde_pace_part()), /* rounded by lot: right on average */
        .node = find_node(state),
    };
    sonde_block old; /* freed behind our back: another tool has put our hooks aside for a while */
    if (sonde_blocks_take(&heap.state->blocks, counts, address, &old) == 0)
        add_freed(&old);
    if (heap.files.has_types) {
        (void)sonde_memory_open(); /* the program may have closed it */
        find_type();
    }
    heap.state->newest = 0;
    sonde_late_block late = {.address = address, .bytes = block.bytes, .stack = block.node, .node = block.node};
    block.node = find_native(&late, begin, &is_late);
    if (sonde_blocks_add(&heap.state->blocks, counts, &block) < 0) {
        heap.state->sums.blocks_lost++;
        return;
    }
    add_allocated(block.node, block.bytes, block.blocks);
    heap.state->sums.samples++;
    heap.state->newest = address;
    if (is_late)
        sonde_native_stack_keep(&late);
}

PyThreadState *sonde_heap_thread(void)
{
#if PY_VERSION_HEX >= 0x030d0000
    PyThreadState *state = PyThreadState_GetUnchecked();
    return state != NULL ? state : PyGILState_GetThisThreadState();
#elif PY_VERSION_HEX >= 0x030c0000
    PyThreadState *state = _PyThreadState_UncheckedGet();
    return state != NULL ? state : PyGILState_GetThisThreadState();
#else
    return PyGILState_GetThisThreadState();
#endif
}

void sonde_heap_add(const void *address, size_t size, PyThreadState *state)
{
    int kept = errno, cancels;
    sonde_thread_place begin = sonde_native_stack_begin();
    if (!is_here())
        return;
    /* What opens and reads files may end a thread that is to be cancelled, and an allocation never does. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancels);
    pthread_mutex_lock(&lock);
    if (heap.state != NULL) {
        int64_t begin_ns = sonde_clock_ns();
        if (sonde_native_stack_is_due())
            move_late();
        add((uintptr_t)address, size, state, &begin);
        if (is_due(begin_ns))
            publish(begin_ns);
        int64_t end_ns = sonde_clock_ns();
        heap.state->sums.own_ns += end_ns - begin_ns;
        if (sonde_pace_count(end_ns, end_ns - begin_ns))
            draw_anew();
    }
    pthread_mutex_unlock(&lock);
    pthread_setcancelstate(cancels, NULL);
    sonde_store_relaxed(&drawn, 1);
    errno = kept;
}

int sonde_heap_has_drawn(void) { return sonde_load_relaxed(&drawn) != 0 && sonde_swap_acquire(&drawn, 0) != 0; }

int sonde_heap_take(const void *address, sonde_block *block)
{
    if (!is_here())
        return 0;
    pthread_mutex_lock(&lock);
    int is_known = heap.state != NULL &&
                   sonde_blocks_take(&heap.state->blocks, counts, (uintptr_t)address, block) == 0;
    pthread_mutex_unlock(&lock);
    return is_known;
}

void sonde_heap_freed(const sonde_block *block)
{
    pthread_mutex_lock(&lock);
    if (heap.state != NULL)
        add_freed(block);
    pthread_mutex_unlock(&lock);
}

void sonde_heap_put_back(const sonde_block *block)
{
    pthread_mutex_lock(&lock);
    if (heap.state != NULL)
        (void)sonde_blocks_add(&heap.state->blocks, counts, block); /* it had room a moment ago */
    pthread_mutex_unlock(&lock);
}

/* ---- begin and end ---------------------------------------------------------------------------- */

static void on_death(uintptr_t code)
{
    pthread_mutex_lock(&lock);
    if (heap.state != NULL)
        sonde_own_stack_forget(&heap.state->known, code);
    pthread_mutex_unlock(&lock);
}

static uint32_t put_text(const char *text)
{
    return sonde_intern_put(heap.files.home.text, text, (uint32_t)strlen(text));
}

/* Fill in what is left to fill in. */
static void set_up(heap_state *state)
{
    sonde_stack_home *home = &heap.files.home;
    home->empty_text = put_text("");
    home->cut_text = put_text("<cut>");
    home->outside_text = put_text("<outside of Python>");
    home->cut = 0;
    state->type_text = put_text("<type>");
    sonde_nodes_index(&home->nodes); /* there are nodes if it was switched off and on again */
    sonde_frame_key lost = {.func = put_text("<no room>"), .file = home->empty_text, .text_hash = 2};
    state->lost_node = sonde_nodes_put(&home->nodes, 0, &lost);
    state->begin_ns = state->published_ns = state->full_ns = sonde_clock_ns();
    memset(counts, 0, sizeof counts);
}

/* What was alive when sampling last ended is not known any more: it counts as freed. */
static void settle(void)
{
    const sonde_nodes_handle *nodes = &heap.files.home.nodes;
    for (uint32_t id = 1; id <= nodes->count; id++) {
        sonde_node *node = sonde_nodes_at(nodes, id);
        if (freed_bytes_of(node) == allocated_bytes_of(node))
            continue;
        sonde_store_relaxed(&freed_bytes_of(node), allocated_bytes_of(node));
        sonde_store_relaxed(&freed_blocks_of(node), (int64_t)allocated_blocks_of(node));
        mark(id);
    }
}

int sonde_heap_begin(const sonde_heap_files *files, int64_t every_bytes)
{
    uint32_t entries = files->home.nodes.entries;
    uint64_t slots = sonde_nodes_slots(&files->home.nodes);
    size_t bytes = sizeof(heap_state) + entries * (sizeof(uint32_t) + 1) + slots * sizeof(uint32_t) + 8;
    char *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mem == MAP_FAILED)
        return -errno;
    char *words = mem + sizeof(heap_state);
    be_here();
    pthread_mutex_lock(&lock);
    heap = (sonde_heap){.state = (heap_state *)mem,
                        .changed = (uint32_t *)words,
                        .is_changed = (uint8_t *)(words + (entries + slots) * sizeof(uint32_t)),
                        .bytes = bytes,
                        .files = *files};
    heap.files.home.nodes.index = (uint32_t *)words + entries;
    set_up(heap.state);
    settle();
    pthread_mutex_unlock(&lock);
    sonde_codes_tell(on_death);
    sonde_heap_every(every_bytes);
    sonde_heap_publish(); /* what was alive before counts as freed from now on, not from the first sample */
    sonde_store_relaxed(&sonde_heap_now.filter, counts);
    return 0;
}

void sonde_heap_every(int64_t every_bytes)
{
    pthread_mutex_lock(&lock);
    if (heap.state != NULL) {
        sonde_pace_begin(every_bytes, sonde_clock_ns());
        draw_anew();
    }
    pthread_mutex_unlock(&lock);
}

void sonde_heap_publish(void)
{
    pthread_mutex_lock(&lock);
    if (heap.state != NULL) {
        move_late();
        publish(sonde_clock_ns());
    }
    pthread_mutex_unlock(&lock);
}

void sonde_heap_move_late(void)
{
    pthread_mutex_lock(&lock);
    if (heap.state != NULL)
        move_late();
    pthread_mutex_unlock(&lock);
}

void sonde_heap_end(void)
{
    pthread_mutex_lock(&lock);
    heap_state *state = heap.state;
    if (state != NULL && heap.files.has_types)
        find_type();
    if (state != NULL)
        move_late();
    if (state != NULL)
        publish(sonde_clock_ns());
    rest();
    heap.state = NULL;
    pthread_mutex_unlock(&lock);
    if (state != NULL)
        munmap(state, heap.bytes);
}

#endif
