/* Event loops, as the sampler sees them: see loops.h.
 *
 * A loop runs each of its callbacks in a context (contextvars), and a thread counts how often it
 * entered or left one. Two samples inside a callback with the same count were taken during the same
 * callback: nothing else ran on this loop from the one to the other. That costs the program nothing,
 * and is true of every loop that keeps to asyncio's rules. A callback that enters contexts itself is
 * not seen to be long; a short one is never taken for a long one. */
#include "stacks/sampler.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_NS 1000000000 /* the longest time that one row stands for */
enum { NO_CALLBACK = 1, NO_WAIT = 2 }; /* optional columns that are NULL */
enum { ANY_NAME = 0, RUN_NAME, LOOP_NAME };

/* ---- functions --------------------------------------------------------------------- */

static int ends_with(const char *text, size_t bytes, const char *end)
{
    size_t n = strlen(end);
    return bytes >= n && memcmp(text + bytes - n, end, n) == 0;
}

int sonde_loop_name(const char *name, size_t bytes)
{
    static const char *const own[] = {"_run_once", "run_forever", "run_until_complete"};
    if (ends_with(name, bytes, "_run")) /* Handle._run, without its class on 3.10 */
        return RUN_NAME;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (ends_with(name, bytes, own[i]))
            return LOOP_NAME;
    return ANY_NAME;
}

enum sonde_loop_part sonde_loop_part(int name, const char *file, size_t bytes)
{
    if (name == RUN_NAME && ends_with(file, bytes, "/asyncio/events.py"))
        return SONDE_LOOP_CALLBACK;
    if (name == LOOP_NAME && ends_with(file, bytes, "/asyncio/base_events.py"))
        return SONDE_LOOP_ITSELF;
    /* uvloop's own functions have no frames: its callbacks are called by whoever runs the loop. */
    if (ends_with(file, bytes, "/asyncio/runners.py") || ends_with(file, bytes, "/uvloop/__init__.py"))
        return SONDE_LOOP_RUNNER;
    return SONDE_LOOP_NOTHING;
}

/* ---- rows ----------------------------------------------------------------------------- */

/* Return the text of what the callback waited for most; 0 if it mostly ran. */
static uint32_t find_wait_text(const sonde_sampler *s, const sonde_loop *loop)
{
    int most = SONDE_WAIT_NONE;
    for (int kind = 0; kind < SONDE_WAIT_KINDS; kind++)
        if (loop->wait_ns[kind] > loop->wait_ns[most])
            most = kind;
    return s->wait_texts[most];
}

static void write_hold(sonde_sampler *s, sonde_sampled_thread *thread)
{
    sonde_loop *loop = thread->loop;
    sonde_hold_row row = {
        .t_ns = loop->written_ns,
        .dur_ns = loop->seen_ns - loop->written_ns,
        .held_ns = loop->seen_ns - loop->since_ns,
        .thread = thread->tid,
        .callback = loop->callback,
        .stack = sonde_nodes_at(&s->nodes, loop->node)->hash,
        .samples = loop->samples,
        .cpu_ns = loop->cpu_ns,
        .wait = find_wait_text(s, loop),
    };
    uint64_t words[sizeof row / 8] = {0};
    memcpy(words, &row, sizeof row);
    (void)sonde_ring_append(&s->holds, words,
                            (row.callback == 0 ? NO_CALLBACK : 0) | (row.wait == 0 ? NO_WAIT : 0));
    int64_t counted_ns = loop->written_ns > loop->sums_ns ? loop->written_ns : loop->sums_ns;
    loop->held_ns += loop->seen_ns - counted_ns; /* never more than the sums' own time */
    loop->longest_ns = row.held_ns > loop->longest_ns ? row.held_ns : loop->longest_ns;
    loop->written_ns = loop->seen_ns;
    loop->samples = 0;
    loop->cpu_ns = loop->node_ns = 0;
    memset(loop->wait_ns, 0, sizeof loop->wait_ns);
}

/* Write what is not written of a callback that has kept the loop for long. */
static void write_rest(sonde_sampler *s, sonde_sampled_thread *thread)
{
    sonde_loop *loop = thread->loop;
    int is_long = loop->seen_ns - loop->since_ns >= s->interval_ns;
    if (loop->since_ns && is_long && loop->seen_ns > loop->written_ns)
        write_hold(s, thread);
}

static void end_hold(sonde_sampler *s, sonde_sampled_thread *thread)
{
    write_rest(s, thread);
    thread->loop->since_ns = 0;
}

static void begin_sums(sonde_loop *loop, int64_t now_ns)
{
    loop->sums_ns = now_ns;
    loop->sums_turn = loop->turn;
    loop->idle_ns = loop->held_ns = loop->longest_ns = 0;
}

static void write_sums(sonde_sampler *s, sonde_sampled_thread *thread, int64_t now_ns)
{
    sonde_loop *loop = thread->loop;
    write_rest(s, thread); /* a callback that goes on belongs to these sums as far as it got */
    sonde_loop_row row = {
        .t_ns = now_ns,
        .thread = thread->tid,
        .wall_ns = now_ns - loop->sums_ns,
        .idle_ns = loop->idle_ns,
        .callbacks = (loop->turn - loop->sums_turn) / 2, /* each enters a context and leaves it */
        .held_ns = loop->held_ns,
        .longest_ns = loop->longest_ns,
    };
    uint64_t words[sizeof row / 8];
    memcpy(words, &row, sizeof row);
    (void)sonde_ring_append(&s->loops, words, 0);
    begin_sums(loop, now_ns);
}

/* ---- a sample ------------------------------------------------------------------------------- */

/* Where a stack is: outside of any loop, in the loop itself, or in a callback. */
typedef struct {
    int is_on, is_inside;
    int frame; /* of the callback, counted from the innermost; -1: it is written in C */
} place;

static place find_place(const sonde_sampled_thread *thread, const sonde_stack *stack)
{
    const sonde_loop *loop = thread->loop;
    for (int i = 0; i < stack->depth; i++) {
        enum sonde_loop_part part = stack->frame[i].code->loop_part;
        if (part != SONDE_LOOP_NOTHING)
            return (place){1, part == SONDE_LOOP_CALLBACK || (part == SONDE_LOOP_RUNNER && i > 0), i - 1};
    }
    if (loop == NULL || loop->entry == 0 || thread->path_n < loop->entry_depth ||
        thread->path[loop->entry_depth - 1].node != loop->entry)
        return (place){0, 0, -1};
    return (place){1, thread->path_n > loop->entry_depth, thread->path_n - loop->entry_depth - 1};
}

/* Does the innermost function run a loop whose functions have no frames? It waits for input again
 * where it waited before, and callbacks ran meanwhile. */
static int is_entry(sonde_sampled_thread *thread, uint64_t turn)
{
    if (thread->wait != SONDE_WAIT_POLL)
        return 0;
    int found = thread->poll_node == thread->node && turn - thread->poll_turn >= 2;
    thread->poll_node = thread->node;
    thread->poll_turn = turn;
    return found;
}

void sonde_loop_see(sonde_sampler *s, sonde_sampled_thread *thread, const sonde_stack *stack)
{
    place at = find_place(thread, stack);
    int is_new = !at.is_on && is_entry(thread, stack->turn);
    if (thread->loop == NULL && !at.is_on && !is_new)
        return;
    if (thread->loop == NULL && (thread->loop = calloc(1, sizeof *thread->loop)) == NULL)
        return;
    sonde_loop *loop = thread->loop;
    if (is_new) {
        loop->entry = thread->node;
        loop->entry_depth = thread->path_n;
        at.is_on = 1;
    }
    if (!at.is_inside || stack->turn != loop->turn)
        end_hold(s, thread);
    if (!at.is_on && loop->is_on)
        sonde_loop_rest(s, thread);
    loop->turn = stack->turn;
    loop->is_on = at.is_on;
    loop->is_inside = at.is_inside;
    loop->callback = at.is_inside && at.frame >= 0 ? stack->frame[at.frame].code->key.func : 0;
}

void sonde_loop_count(sonde_sampler *s, sonde_sampled_thread *thread, const sonde_sample_facts *facts,
                      int64_t wall_ns)
{
    sonde_loop *loop = thread->loop;
    if (loop == NULL || !loop->is_on)
        return;
    int64_t now_ns = facts->now_ns;
    if (loop->sums_ns == 0)
        begin_sums(loop, now_ns);
    else if (!loop->is_inside && facts->wait == SONDE_WAIT_POLL)
        loop->idle_ns += wall_ns;
    if (loop->is_inside && loop->since_ns == 0) {
        loop->since_ns = loop->written_ns = loop->seen_ns = now_ns;
        loop->samples = 1;
        loop->cpu_ns = loop->node_ns = 0;
        memset(loop->wait_ns, 0, sizeof loop->wait_ns);
    } else if (loop->is_inside) {
        int64_t more_ns = now_ns - loop->seen_ns;
        /* Whatever stack has more than half of the time ends up here. */
        if (thread->node != loop->node && loop->node_ns < more_ns) {
            loop->node = thread->node;
            loop->node_ns = more_ns - loop->node_ns;
        } else {
            loop->node_ns += thread->node == loop->node ? more_ns : -more_ns;
        }
        loop->wait_ns[facts->wait] += more_ns;
        loop->cpu_ns += facts->cpu_ns;
        loop->seen_ns = now_ns;
        loop->samples++;
        if (now_ns - loop->written_ns >= PIECE_NS)
            write_hold(s, thread);
    }
    if (now_ns - loop->sums_ns >= PIECE_NS)
        write_sums(s, thread, now_ns);
}

void sonde_loop_rest(sonde_sampler *s, sonde_sampled_thread *thread)
{
    sonde_loop *loop = thread->loop;
    if (loop == NULL || !loop->is_on)
        return;
    end_hold(s, thread);
    if (loop->sums_ns && thread->seen_ns > loop->sums_ns)
        write_sums(s, thread, thread->seen_ns);
    loop->sums_ns = 0;
    loop->is_on = 0;
}

int sonde_loop_is_any(const sonde_sampler *s)
{
    for (uint32_t at = 0; at < s->threads.count; at++)
        if (s->threads.list[at]->loop != NULL && s->threads.list[at]->loop->is_on)
            return 1;
    return 0;
}
