/* Sampling: which threads, and when. What a sample holds is in sample.c.
 *
 * A sample stands for the time since the thread's last one, so times add up to
 * the time that really passed, however late or rare samples are. A thread whose CPU
 * clock has not advanced has not moved either: its stack is the same as last time.
 * Such samples are added up and written once a second.
 */
#define _GNU_SOURCE 1
#include "stacks/c_call.h"
#include "stacks/interpreters.h"
#include "stacks/reading_time.h"
#include "stacks/sampler.h"
#include "kernel/fatal_signal.h"
#include "kernel/filter.h"
#include "kernel/read_memory.h"
#include "kernel/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUMS_NS 10000000000  /* a row about the sampling itself */
#define MOST_NS 200000       /* for one sample of all threads; the rest of them wait for the next one */
#define LEAST_NS 50000       /* between two samples */
#define DOUBT_US 30
#define DOUBT_TRIES 4        /* readings of a thread until a new call is certain */

#if SONDE_HAS_FRAMES

/* Return the CPU time that a thread seen for the first time has used since the last sample: all
 * that it ever used, if it is younger than that sample. */
static int64_t count_first(const sonde_sampler *s, int64_t now_ns, int64_t cpu_ns)
{
    return s->last_ns && cpu_ns < now_ns - s->last_ns ? cpu_ns : 0;
}

/* Read the stack of a thread, which may be in two interpreters. */
static enum sonde_frames_result read_stack(sonde_sampler *s, sonde_sampled_thread *thread, sonde_stack *stack,
                                           int is_strict, uint32_t *interpreter)
{
    int is_inner = 0;
    enum sonde_frames_result found =
        thread->inner.state == 0
            ? sonde_frames_read(&thread->view, stack, s->text, is_strict)
            : sonde_frames_read_both(&thread->view, &thread->inner, stack, s->text, is_strict, &is_inner);
    *interpreter = is_inner ? thread->inner_number : thread->number;
    return found;
}

/* Read the stack of a thread until it is certain. Returns its node; 0: it has none, or is doubtful. */
static uint32_t find_node(sonde_sampler *s, sonde_sampled_thread *thread, sonde_stack *stack,
                          enum sonde_frames_result *found, uint32_t *interpreter)
{
    uint32_t node = 0;
    int is_end = sonde_crash_hold(&s->crash, thread->tid);
    int64_t cpu_ns = is_end ? sonde_thread_cpu(thread->tid) : 0;
    int is_still = is_end && sonde_crash_is_still(&s->crash, cpu_ns);
    int is_held = is_end || sonde_native_hold(&s->native, thread);
    for (int tries = 0; tries < DOUBT_TRIES && node == 0; tries++) {
        sonde_reading_stands(is_still);
        *found = read_stack(s, thread, stack, tries > 0, interpreter);
        sonde_reading_stands(0);
        if (is_still && *found == SONDE_FRAMES_OK && !sonde_crash_is_still(&s->crash, cpu_ns))
            *found = SONDE_FRAMES_TORN;
        if (*found == SONDE_FRAMES_GONE || *found == SONDE_FRAMES_EMPTY)
            break;
        if (*found == SONDE_FRAMES_OK)
            node = sonde_sample_stack(s, thread, stack, tries > 0);
        if (*found == SONDE_FRAMES_OK && node == 0 && !is_held)
            usleep(DOUBT_US); /* whatever caused a false reading may last for microseconds */
    }
    /* What was held belongs to another thread if this one is new: see sample_one(). */
    int is_its_own = stack->tid == thread->tid;
    if (is_end)
        sonde_crash_release(&s->crash, is_its_own && node != 0 ? stack : NULL);
    else if (is_held && sonde_native_release(&s->native) && is_its_own && node != 0)
        node = sonde_native_extend(&s->native, &s->nodes, node);
    return node;
}

/* Return what a thread that is not running waits for. Since 3.15 its state says when that is the GIL; else,
 * and while it makes sure that another thread got the GIL, the GIL is told apart from other locks by where it
 * lies. */
static enum sonde_wait_kind find_wait(const sonde_sampled_thread *thread)
{
    if (sonde_frames_wants_gil(thread->inner.state ? thread->inner.state : thread->view.state))
        return SONDE_WAIT_GIL;
    sonde_thread_wait found = sonde_wait_find(thread->tid);
    if (found.kind == SONDE_WAIT_LOCK &&
        sonde_interpreters_has_gil(thread->view.interpreter, (uintptr_t)found.lock))
        return SONDE_WAIT_GIL;
    return found.kind;
}

/* Return what a thread waits for whose CPU clock stood at `cpu_ns` just now: many waits for a disk or for
 * memory take 20 us, and are over when its stack has been read. On a busy machine it may be waiting only
 * for the CPU that we have. */
static enum sonde_wait_kind find_wait_now(const sonde_sampled_thread *thread, int64_t cpu_ns)
{
    const sonde_fault *fault = sonde_fatal_fault();
    if (fault != NULL && thread->tid == fault->tid)
        return SONDE_WAIT_NONE; /* it waits for us */
    return sonde_thread_cpu(thread->tid) == cpu_ns ? find_wait(thread) : SONDE_WAIT_NONE;
}

/* Sample one thread. Returns 0 if it has ended. */
static int sample_one(sonde_sampler *s, sonde_sampled_thread *thread, int everyone)
{
    static sonde_stack stack; /* only one thread samples; this is too large for its stack */
    int64_t now_ns = sonde_clock_ns(), cpu_ns = sonde_thread_cpu(thread->tid);
    if (cpu_ns < 0)
        return 0;
    int is_wanted = sonde_crash_wants(&s->crash, thread->tid); /* even if it waits */
    if (thread->node && cpu_ns == thread->cpu_ns && !is_wanted) {
        if (thread->wait == SONDE_WAIT_NONE)
            thread->wait = find_wait(thread);
        sonde_sample_facts facts = {now_ns, 0, thread->wait, 1, everyone};
        sonde_sample_count(s, thread, &facts);
        return 1;
    }
    enum sonde_wait_kind wait = find_wait_now(thread, cpu_ns);
    enum sonde_frames_result found = SONDE_FRAMES_TORN;
    uint32_t interpreter = 0, node = find_node(s, thread, &stack, &found, &interpreter);
    if (found == SONDE_FRAMES_GONE)
        return 0;
    if (found != SONDE_FRAMES_EMPTY && node == 0) {
        s->sums.torn++;
        s->moved_ns = now_ns;
        thread->is_bare = 0;
        return 1;
    }
    thread->is_bare = found == SONDE_FRAMES_EMPTY;
    if (stack.tid != thread->tid) {
        /* A new thread: until it runs, its state has the id of the thread that made it. */
        thread->tid = stack.tid;
        thread->cpu_ns = -1;
        if (sonde_crash_wants(&s->crash, thread->tid))
            return sample_one(s, thread, everyone); /* for the native stack that is its own */
        cpu_ns = sonde_thread_cpu(thread->tid);
        wait = find_wait_now(thread, cpu_ns);
    }
    int64_t used_ns = thread->cpu_ns < 0 ? count_first(s, now_ns, cpu_ns) : cpu_ns - thread->cpu_ns;
    uint32_t call = node ? sonde_c_call_find(&stack, s->text) : 0;
    int is_same = node == thread->node && call == thread->call && stack.holds_gil == thread->holds_gil &&
                  interpreter == thread->interpreter;
    if (node != thread->node)
        s->moved_ns = now_ns;
    if (!is_same || used_ns)
        sonde_sample_release(s, thread);
    thread->node = node;
    thread->call = call;
    thread->holds_gil = stack.holds_gil;
    thread->interpreter = interpreter;
    thread->cpu_ns = cpu_ns;
    thread->is_in_condition = node && stack.frame[0].code->is_condition;
    thread->stood_ns = now_ns;
    thread->look_ns = 0;
    s->sums.cut += node != 0 && stack.is_cut;
    if (node) {
        thread->wait = wait;
        sonde_loop_see(s, thread, &stack);
        sonde_sample_facts facts = {now_ns, used_ns, thread->wait, is_same, everyone};
        sonde_sample_count(s, thread, &facts);
    } else {
        sonde_loop_rest(s, thread);
        thread->seen_ns = 0; /* C code that only calls into Python now and then: not counted */
    }
    return 1;
}

/* Find the ids of threads that were never seen to run: they may have begun since. Otherwise their native stacks would
 * be taken for those of threads that run no Python. */
static void name_new(sonde_sampler *s)
{
    sonde_thread_entry entry;
    for (uint32_t at = 0; at < s->threads.count; at++) {
        sonde_sampled_thread *thread = s->threads.list[at];
        if (thread->node == 0 &&
            sonde_frames_entry(thread->view.state, thread->view.interpreter, &entry) == 0 &&
            entry.id == thread->view.id && entry.tid != 0 && entry.tid != thread->tid) {
            thread->tid = entry.tid;
            thread->cpu_ns = -1;
        }
    }
}

/* Begin with this thread: there may be more of them than time. Others may be named after it that have not begun. */
static void put_first(sonde_sampler *s, uint32_t tid)
{
    const sonde_sampled_thread *best = NULL;
    for (uint32_t at = 0; at < s->threads.count; at++)
        if (s->threads.list[at]->tid == tid && (best == NULL || best->node == 0)) {
            best = s->threads.list[at];
            s->cursor = at;
        }
}

static void look_at_all(sonde_sampler *s, int64_t now_ns, int everyone)
{
    int64_t most_ns = s->interval_ns / 2 < MOST_NS ? s->interval_ns / 2 : MOST_NS;
    if (sonde_had_later_filter()) {
        s->is_slow = 1; /* from now on memory cannot be read */
        return;
    }
    (void)sonde_memory_open();
    sonde_sampler_search(s, now_ns);
    int is_end = sonde_crash_begin(&s->crash, s->folder);
    if (is_end) {
        name_new(s);
        put_first(s, s->crash.fault->tid);
    }
    uint32_t left = s->threads.count;
    for (; left > 0 && s->threads.count > 0; left--) {
        if (sonde_has_later_filter_within(MOST_NS)) /* whoever asks for everyone's stack waits longer */
            return;
        if (s->cursor >= s->threads.count)
            s->cursor = 0;
        if (sample_one(s, s->threads.list[s->cursor], everyone))
            s->cursor++;
        else
            sonde_sample_end(s, s->cursor);
        if (!everyone && sonde_clock_ns() - now_ns > most_ns)
            break;
    }
    if (left <= 1)
        s->cursor = 0;
    if (is_end)
        sonde_crash_complete(&s->crash, &s->threads, s->own_tid, sonde_load_relaxed(&s->helper_tid));
    sonde_lock_waits_look(s, now_ns, everyone);
}

#else

static void look_at_all(sonde_sampler *s, int64_t now_ns, int everyone)
{
    (void)now_ns;
    (void)everyone;
    s->is_slow = 1;
}

#endif

static void sample(sonde_sampler *s, int64_t now_ns, int everyone)
{
    if (s->is_slow)
        s->wants_stacks = 1;
    else
        look_at_all(s, now_ns, everyone);
    if (s->sums.samples) /* a first reading may be torn: then the next one is the first */
        s->since_ns = 0;
    s->last_ns = s->since_ns ? s->since_ns : now_ns;
    s->sums.taken++;
}

/* ---- when ------------------------------------------------------------------------------- */

static uint64_t draw(sonde_sampler *s)
{
    s->seed ^= s->seed << 13;
    s->seed ^= s->seed >> 7;
    return s->seed ^= s->seed << 17;
}

/* Plan one sample in every period, at a random point of it: a program that does something every
 * 10 ms would otherwise always be seen at the same point. */
static void plan(sonde_sampler *s, int64_t now_ns)
{
    uint64_t current = (uint64_t)((now_ns - s->base_ns) / s->interval_ns);
    uint64_t next = s->period + 1 > current ? s->period + 1 : current;
    s->sums.due += next - s->period;
    s->period = next;
    int64_t begin_ns = s->base_ns + (int64_t)next * s->interval_ns;
    s->due_ns = begin_ns + (int64_t)(draw(s) % (uint64_t)s->interval_ns);
}

/* Return the interval in force: a run may want samples more often than they are taken anyway. */
static int64_t find_interval(const sonde_sampler *s)
{
    int64_t run_ns = sonde_load_relaxed(&s->page->run_every_ns);
    int is_run = sonde_run_ends(s) != INT64_MAX && run_ns >= LEAST_NS;
    return is_run && run_ns < s->every_ns ? run_ns : s->every_ns;
}

void sonde_sampler_set_interval(sonde_sampler *s, int64_t every_ns)
{
    s->every_ns = every_ns;
    s->interval_ns = find_interval(s);
    s->base_ns = sonde_clock_ns();
    s->period = 0;
    s->due_ns = s->base_ns;
}

/* Forget the times of all threads after a pause: the time that passed is not counted. */
static void forget_times(sonde_sampler *s)
{
    for (uint32_t i = 0; i < s->threads.count; i++) {
        s->threads.list[i]->seen_ns = 0;
        s->threads.list[i]->cpu_ns = -1;
        s->threads.list[i]->queue_ns = -1;
    }
    s->last_ns = s->since_ns;
    s->moved_ns = sonde_clock_ns(); /* nobody looked meanwhile */
    sonde_sampler_set_interval(s, s->every_ns);
}

/* Begin or end the run. What every thread did up to now has been counted already. */
static void begin_or_end_run(sonde_sampler *s, int64_t now_ns)
{
    if (sonde_run_begins(s))
        sonde_run_begin(s);
    else if (now_ns >= sonde_run_ends(s))
        sonde_run_end(s);
    else
        return;
    sonde_sampler_set_interval(s, s->every_ns);
}

static int64_t take_turn(sonde_sampler *s, int64_t now_ns, int everyone)
{
    int is_off = !sonde_load_acquire(&s->page->on);
    if (s->own_tid == 0)
        s->own_tid = (uint32_t)sonde_find_tid(); /* a new thread: see sonde_sampler_rest() */
    for (uint32_t i = 0; is_off && !s->was_off && i < s->threads.count; i++) {
        sonde_sample_release(s, s->threads.list[i]);
        sonde_loop_rest(s, s->threads.list[i]);
    }
    if (!is_off && s->was_off)
        forget_times(s);
    s->was_off = is_off;
    if (everyone && is_off)
        forget_times(s); /* a sample on demand during a pause counts no time */
    if (everyone)
        sample(s, now_ns, 1);
    if (is_off) {
        if (everyone)
            forget_times(s);
        return INT64_MAX;
    }
    if (now_ns >= s->due_ns) {
        sample(s, now_ns, 0);
        plan(s, sonde_clock_ns());
        if (now_ns - s->sums_ns >= SUMS_NS)
            sonde_sample_sums(s, now_ns);
    }
    return s->due_ns;
}

int64_t sonde_sampler_turn(sonde_sampler *s, int everyone)
{
    int64_t now_ns = sonde_clock_ns();
    int is_run_due = sonde_run_begins(s) || now_ns >= sonde_run_ends(s);
    int64_t due_ns = take_turn(s, now_ns, everyone || is_run_due);
    if (is_run_due) {
        begin_or_end_run(s, now_ns);
        due_ns = s->was_off ? INT64_MAX : s->due_ns;
    }
    int64_t end_ns = sonde_run_ends(s);
    return due_ns < end_ns ? due_ns : end_ns;
}

void sonde_sampler_rest(sonde_sampler *s)
{
    if (s->own_tid && !sonde_had_later_filter())
        s->own_cpu_ns += sonde_thread_cpu(s->own_tid);
    s->own_tid = 0;
}

/* ---- the rest ----------------------------------------------------------------------------- */

void sonde_sampler_name(sonde_sampler *s, sonde_sampled_thread *thread, uint32_t name)
{
    if (thread->name == name)
        return;
    thread->name = name;
    if (thread->has_row)
        sonde_sample_thread(s, thread, s->named_text);
}

/* Return the node of a stack, root first; 0 if there is no room for it. */
static uint32_t put_nodes(sonde_sampler *s, const sonde_frame_key *keys, int n)
{
    uint32_t node = 0;
    for (int i = 0; i < n; i++)
        if ((node = sonde_nodes_put(&s->nodes, node, &keys[i])) == 0)
            break;
    return node;
}

uint64_t sonde_sampler_put(sonde_sampler *s, const sonde_frame_key *keys, int n)
{
    uint32_t node = put_nodes(s, keys, n);
    return node == 0 ? 0 : sonde_nodes_at(&s->nodes, node)->hash;
}

void sonde_sampler_take(sonde_sampler *s, uint32_t tid, const sonde_frame_key *keys, int n,
                        int gil)
{
    /* Without the addresses of thread states the thread id stands for them. */
    sonde_sampled_thread *thread = sonde_threads_find(&s->threads, tid);
    if (thread == NULL && (thread = sonde_threads_add(&s->threads, tid)) == NULL)
        return;
    thread->tid = tid;
    int64_t now_ns = sonde_clock_ns(), cpu_ns = sonde_thread_cpu(tid);
    int64_t used_ns = thread->cpu_ns < 0 || cpu_ns < 0 ? 0 : cpu_ns - thread->cpu_ns;
    uint32_t node = n == 0 ? 0 : put_nodes(s, keys, n);
    if (n > 0 && node == 0)
        node = sonde_sample_lose(s);
    if (node == 0)
        return;
    int is_same = node == thread->node && gil == thread->holds_gil;
    if (node != thread->node)
        s->moved_ns = now_ns;
    if (!is_same || used_ns)
        sonde_sample_release(s, thread);
    thread->node = node;
    thread->holds_gil = gil;
    thread->cpu_ns = cpu_ns;
    if (used_ns)
        thread->wait = SONDE_WAIT_NONE;
    else if (thread->wait == SONDE_WAIT_NONE)
        thread->wait = sonde_wait_find(tid).kind;
    sonde_sample_facts facts = {now_ns, used_ns, thread->wait, is_same, 0};
    sonde_sample_count(s, thread, &facts);
}

void sonde_sampler_taken(sonde_sampler *s, int64_t begin_ns)
{
    for (uint32_t at = s->threads.count; at-- > 0;)
        if (s->threads.list[at]->seen_ns < begin_ns)
            sonde_sample_end(s, at);
}

static uint32_t put_text(sonde_sampler *s, const char *text)
{
    return sonde_intern_put(s->text, text, (uint32_t)strlen(text));
}

int sonde_sampler_open(sonde_sampler *s)
{
    s->nodes.index = calloc(sonde_nodes_slots(&s->nodes), sizeof *s->nodes.index);
    if (s->nodes.index == NULL)
        return -ENOMEM;
    sonde_nodes_index(&s->nodes); /* there are nodes if it was switched off and on again */
    s->empty_text = put_text(s, "");
    s->cut_text = put_text(s, "<cut>");
    s->started_text = put_text(s, "started");
    s->named_text = put_text(s, "named");
    s->ended_text = put_text(s, "ended");
    s->main_text = put_text(s, "MainThread");
    s->lock_text = put_text(s, "Lock");
    s->rlock_text = put_text(s, "RLock");
    s->end_text = put_text(s, "thread");
    for (int i = SONDE_WAIT_NONE + 1; i < SONDE_WAIT_KINDS; i++)
        s->wait_texts[i] = put_text(s, sonde_wait_names[i]);
    sonde_frame_key lost = {.func = put_text(s, "<no room>"), .file = s->empty_text, .text_hash = 2};
    s->lost_node = sonde_nodes_put(&s->nodes, 0, &lost);
    s->seed = (uint64_t)sonde_clock_ns() | 1;
    s->was_off = 1; /* so that the first turn starts the clocks */
    s->sums_ns = sonde_clock_ns();
    return 0;
}

void sonde_sampler_close(sonde_sampler *s)
{
    for (uint32_t i = 0; i < s->threads.count; i++)
        sonde_sample_settle(s, s->threads.list[i]);
    if (s->nodes.index != NULL)
        sonde_run_end(s); /* nobody else would end it */
    if (s->nodes.index != NULL)
        sonde_sample_sums(s, sonde_clock_ns());
    sonde_threads_clear(&s->threads);
    sonde_native_close(&s->native);
    free(s->nodes.index);
    s->nodes.index = NULL;
}
