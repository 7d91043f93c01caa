/* One sample: its row, its stack, and its part of the sums. */
#define _GNU_SOURCE 1
#include "stacks/sampler.h"
#include "kernel/thread.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REPEAT_NS 300000000000
#define FEW 32 /* a part of the elapsed time that is not worth a question */
#define HOLD_NS 1000000000 /* the longest time for which samples of an idle thread are added up */

/* ---- rows ----------------------------------------------------------------------- */

/* What of a row differs between a working thread and one that waits. */
typedef struct {
    int64_t t_ns;
    uint32_t samples;
    int64_t wall_ns, cpu_ns, queue_ns; /* queue_ns is -1 if it is not known */
    enum sonde_wait_kind wait;
} times;

enum { NO_WAIT = 1, NO_QUEUE = 2, NO_CALL = 4 }; /* optional columns that are NULL */

static void write_sample(sonde_sampler *s, const sonde_sampled_thread *thread, times of)
{
    sonde_sample_row row = {
        .t_ns = of.t_ns,
        .thread = thread->tid,
        .stack = sonde_nodes_at(&s->nodes, thread->node)->hash,
        .samples = of.samples,
        .wall_ns = of.wall_ns,
        .cpu_ns = of.cpu_ns,
        .gil = (uint8_t)thread->holds_gil,
        .idle = of.wait != SONDE_WAIT_NONE,
        .interpreter = thread->interpreter,
        .wait = s->wait_texts[of.wait],
        .queue_ns = of.queue_ns,
        .call = thread->call,
    };
    uint32_t nulls = (row.wait == 0 ? NO_WAIT : 0) | (of.queue_ns < 0 ? NO_QUEUE : 0) |
                     (row.call == 0 ? NO_CALL : 0);
    uint64_t words[sizeof row / 8] = {0};
    memcpy(words, &row, sizeof row);
    (void)sonde_ring_append(&s->samples, words, nulls); /* a drop is counted there */
}

void sonde_sample_release(sonde_sampler *s, sonde_sampled_thread *thread)
{
    if (thread->held)
        write_sample(s, thread, (times){thread->held_ns, thread->held, thread->held_wall_ns, 0, 0,
                                        thread->wait});
    thread->held = 0;
    thread->held_wall_ns = 0;
}

void sonde_sample_settle(sonde_sampler *s, sonde_sampled_thread *thread)
{
    sonde_loop_rest(s, thread);
    sonde_sample_release(s, thread);
    if (thread->owed_ns == 0 || thread->node == 0)
        return;
    sonde_node *node = sonde_nodes_at(&s->nodes, thread->node);
    sonde_store_relaxed(&node->cpu_ns, node->cpu_ns + thread->owed_ns);
    write_sample(s, thread, (times){.t_ns = thread->seen_ns, .cpu_ns = thread->owed_ns});
    thread->owed_ns = 0;
}

void sonde_sample_thread(sonde_sampler *s, sonde_sampled_thread *thread, uint32_t state)
{
    thread->row_ns = sonde_clock_ns();
    sonde_thread_row row = {thread->row_ns, thread->tid, thread->name, state};
    uint64_t words[sizeof row / 8];
    memcpy(words, &row, sizeof row);
    (void)sonde_ring_append(&s->thread_rows, words, thread->name == 0);
}

void sonde_sample_sums(sonde_sampler *s, int64_t now_ns)
{
    uint64_t words[sizeof s->sums / 8];
    s->sums_ns = now_ns;
    s->sums.t_ns = now_ns;
    s->sums.cpu_ns = s->own_cpu_ns + (s->own_tid ? sonde_thread_cpu(s->own_tid) : 0);
    s->sums.threads = s->threads.count;
    s->sums.stacks = s->nodes.count;
    s->sums.stacks_lost = s->nodes.shared->lost;
    s->sums.native = s->native.found;
    s->sums.native_lost = s->native.lost;
    memcpy(words, &s->sums, sizeof words);
    (void)sonde_ring_append(&s->sampling, words, 0);
}

/* ---- stacks to nodes -------------------------------------------------------------- */

uint32_t sonde_sample_lose(sonde_sampler *s)
{
    sonde_add_relaxed(&s->nodes.shared->lost, 1);
    return s->lost_node;
}

static int make_room(sonde_sampled_thread *thread, int steps)
{
    if (steps <= thread->path_room)
        return 0;
    int room = steps < 32 ? 32 : steps * 2;
    sonde_step *path = realloc(thread->path, (size_t)room * sizeof *path);
    if (path == NULL)
        return -1;
    thread->path = path;
    thread->path_room = room;
    return 0;
}

static uint32_t put_cut(sonde_sampler *s)
{
    sonde_frame_key cut = {.func = s->cut_text, .file = s->empty_text, .text_hash = 1};
    return sonde_nodes_put(&s->nodes, 0, &cut);
}

/* Is this call doubtful? A call that was never seen before is believed when a strict reading sees
 * it again, even a moment later: what a torn reading makes up is not seen twice. */
static int is_doubtful(sonde_sampler *s, uint32_t parent, const sonde_code *code, int is_strict)
{
    uint64_t call = (uint64_t)parent << 32 | code->id;
    for (int i = 0; i < SONDE_DOUBTS; i++)
        if (s->doubts[i] == call)
            return !is_strict;
    s->doubts[s->doubts_n++ % SONDE_DOUBTS] = call;
    return 1;
}

/* Frames that this stack shares with the thread's last one, from the root on, are not looked up
 * again. */
uint32_t sonde_sample_stack(sonde_sampler *s, sonde_sampled_thread *thread, const sonde_stack *stack,
                           int is_strict)
{
    int is_sure = 0; /* the doubt about new calls is settled */
    int same = 0, depth = stack->depth;
    uint32_t node = stack->is_cut ? put_cut(s) : 0;
    int was_cut = thread->path_n == SONDE_MAX_DEPTH;
    if (make_room(thread, depth) < 0 || (stack->is_cut && node == 0))
        return sonde_sample_lose(s);
    while (!stack->is_cut && !was_cut && same < depth && same < thread->path_n) {
        const sonde_frame *frame = &stack->frame[depth - 1 - same];
        const sonde_step *step = &thread->path[same];
        if (step->code != frame->code->id || step->line != frame->line)
            break;
        node = step->node;
        same++;
    }
    for (int i = same; i < depth; i++) {
        const sonde_frame *frame = &stack->frame[depth - 1 - i];
        sonde_frame_key key = frame->code->key;
        key.line = frame->line;
        if (!is_sure && sonde_nodes_find(&s->nodes, node, &key) == 0) {
            thread->path_n = i;
            if (is_doubtful(s, node, frame->code, is_strict))
                return 0;
            is_sure = 1;
        }
        node = sonde_nodes_put(&s->nodes, node, &key);
        if (node == 0) {
            thread->path_n = i;
            return sonde_sample_lose(s);
        }
        thread->path[i] = (sonde_step){frame->code->id, frame->line, node};
    }
    thread->path_n = depth;
    return node;
}

/* ---- one thread --------------------------------------------------------------------- */

static void write_first_row(sonde_sampler *s, sonde_sampled_thread *thread)
{
    thread->has_row = 1;
    if (thread->tid == (uint32_t)getpid())
        thread->name = s->main_text;
    else
        s->unnamed++;
    sonde_sample_thread(s, thread, s->started_text);
}

/* Return how long the thread waited for a CPU since its last sample; -1 if it is not known. A thread
 * that had a CPU all the time is not asked about, nor is one that sleeps: what it waited for one
 * then is part of the time of those samples, and this one had room for no more than it did not run. */
static int64_t count_queue(sonde_sampled_thread *thread, int64_t wall_ns, int64_t cpu_ns)
{
    if (thread->queue_ns >= 0 && wall_ns - cpu_ns < wall_ns / FEW)
        return 0;
    int64_t before_ns = thread->queue_ns;
    thread->queue_ns = sonde_wait_queue(thread->tid);
    if (thread->queue_ns < 0)
        return -1;
    if (thread->seen_ns == 0 || before_ns < 0)
        return 0;
    int64_t waited_ns = thread->queue_ns - before_ns, off_ns = wall_ns > cpu_ns ? wall_ns - cpu_ns : 0;
    return waited_ns < off_ns ? waited_ns : off_ns;
}

/* Count a sample of this thread at its node. */
void sonde_sample_count(sonde_sampler *s, sonde_sampled_thread *thread, const sonde_sample_facts *facts)
{
    int64_t now_ns = facts->now_ns;
    int64_t since = thread->seen_ns ? thread->seen_ns : s->last_ns ? s->last_ns : now_ns;
    int64_t wall_ns = now_ns > since ? now_ns - since : 0;
    int is_off = facts->wait != SONDE_WAIT_NONE;
    int is_idle = thread->seen_ns != 0 && is_off;
    int64_t queue_ns = is_idle ? 0 : count_queue(thread, wall_ns, facts->cpu_ns);
    /* A thread that sleeps now used its CPU time elsewhere: that time goes to the next
     * sample that finds it on a CPU. */
    int64_t cpu_ns = is_off ? 0 : thread->owed_ns + facts->cpu_ns;
    thread->owed_ns = is_off ? thread->owed_ns + facts->cpu_ns : 0;
    sonde_node *node = sonde_nodes_at(&s->nodes, thread->node);
    thread->seen_ns = now_ns;
    if (!thread->has_row)
        write_first_row(s, thread);
    else if (thread->name && now_ns - thread->row_ns > REPEAT_NS)
        sonde_sample_thread(s, thread, s->named_text); /* later rows may have overwritten its own */
    /* Relaxed: nobody else writes these, and a reader must not see half a number. */
    sonde_store_relaxed(&node->samples, node->samples + 1);
    sonde_store_relaxed(&node->wall_ns, node->wall_ns + wall_ns);
    sonde_store_relaxed(&node->cpu_ns, node->cpu_ns + cpu_ns);
    if (thread->holds_gil)
        sonde_store_relaxed(&node->gil_ns, node->gil_ns + wall_ns);
    s->sums.samples++;
    sonde_loop_count(s, thread, facts, wall_ns);
    if (facts->is_same && facts->cpu_ns == 0 && is_idle) {
        if (thread->held == 0)
            thread->held_since_ns = since;
        thread->held++;
        thread->held_wall_ns += wall_ns;
        thread->held_ns = now_ns;
        if (facts->everyone || now_ns - thread->held_since_ns >= HOLD_NS)
            sonde_sample_release(s, thread);
    } else {
        write_sample(s, thread, (times){now_ns, 1, wall_ns, cpu_ns, queue_ns,
                                        is_idle ? facts->wait : SONDE_WAIT_NONE});
    }
}

void sonde_sample_end(sonde_sampler *s, uint32_t at)
{
    sonde_sampled_thread *thread = s->threads.list[at];
    s->moved_ns = sonde_clock_ns();
    sonde_sample_settle(s, thread);
    if (thread->has_row)
        sonde_sample_thread(s, thread, s->ended_text);
    sonde_threads_remove(&s->threads, at);
}
