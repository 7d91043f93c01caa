/* Which threads there are: those of the main interpreter, and those of all others.
 *
 * A thread may be in two interpreters at once: it runs code of one that had another one run something
 * (concurrent.interpreters). Then it is one thread, whose stack lies in both.
 */
#define _GNU_SOURCE 1
#include "stacks/interpreters.h"
#include "stacks/sampler.h"

#include <string.h>

#if SONDE_HAS_FRAMES

#define SCAN_NS 5000000000 /* the whole list of threads is searched this often */
#define AGAIN_NS 50000     /* times the number of threads: the least time between two full searches */
#define MOST_THREADS 100000
#define MOST_INTERPRETERS 256

static void end_known(sonde_sampler *s, const sonde_sampled_thread *thread)
{
    for (uint32_t at = 0; at < s->threads.count; at++)
        if (s->threads.list[at] == thread) {
            sonde_sample_end(s, at);
            return;
        }
}

/* A thread of ours that runs Python. */
static int is_ours(const sonde_sampler *s, uint32_t tid)
{
    return tid == sonde_load_relaxed(&s->helper_tid) || tid == sonde_later_tid();
}

static sonde_sampled_thread *add(sonde_sampler *s, const sonde_thread_entry *entry, uintptr_t interpreter)
{
    sonde_sampled_thread *thread = sonde_threads_add(&s->threads, entry->state);
    if (thread == NULL)
        return NULL;
    thread->view.id = entry->id;
    thread->view.interpreter = interpreter;
    thread->tid = entry->tid;
    return thread;
}

/* Find new threads of the main interpreter. They are put in front of the list, so the first known one
 * ends the search, unless the list changed during the last search. */
static void search_main(sonde_sampler *s, int64_t now_ns)
{
    /* Search all of the list again only if that is cheap: there may be ten thousand threads. */
    int64_t since_ns = now_ns - s->scanned_ns;
    int is_full = since_ns > SCAN_NS ||
                  (s->must_scan && since_ns > s->threads.count * (int64_t)AGAIN_NS);
    uintptr_t main = (uintptr_t)PyInterpreterState_Main(), at = sonde_frames_head();
    if (is_full) {
        s->scanned_ns = now_ns;
        s->must_scan = 0;
    }
    for (int i = 0; at != 0 && i < MOST_THREADS; i++) {
        sonde_sampled_thread *thread = sonde_threads_find(&s->threads, at);
        sonde_thread_entry entry;
        if (sonde_frames_entry(at, main, &entry) < 0) {
            s->must_scan = 1;
            return;
        }
        if (thread != NULL && (thread->view.id != entry.id || thread->number != 0)) {
            end_known(s, thread); /* another thread has its place in memory now */
            thread = NULL;
        }
        if (thread != NULL && !is_full)
            return;
        if (entry.tid != 0 && is_ours(s, entry.tid)) {
            s->must_scan = 1; /* there may be new threads behind it */
        } else if (thread == NULL && entry.tid != 0) {
            if (add(s, &entry, main) == NULL)
                return;
        } else if (thread == NULL) {
            s->must_scan = 1; /* made, but not yet running */
        }
        at = entry.next;
    }
}

/* ---- the other interpreters ---------------------------------------------------------- */

/* Python 3.12 runs code of an interpreter with the state of the thread that made the interpreter,
 * whichever thread runs it: that first state does not tell whose stack this is. */
static int may_be_of_another_thread(const sonde_thread_entry *entry)
{
    return PY_VERSION_HEX < 0x030D0000 && entry->id == 1;
}

/* Note that a thread of the main interpreter is in this one, too. If it is in several, the newest of
 * them counts: the one that the others wait for. */
static void set_inner(sonde_sampler *s, sonde_sampled_thread *thread, const sonde_thread_entry *entry,
                      const sonde_interpreter *one)
{
    sonde_view *inner = &thread->inner;
    if (thread->inner_search == s->searches && thread->inner_number > one->number)
        return;
    if (inner->state != entry->state || inner->id != entry->id || inner->interpreter != one->address) {
        uintptr_t *room = inner->outside;
        int outside_room = inner->outside_room;
        *inner = (sonde_view){.state = entry->state, .id = entry->id, .interpreter = one->address,
                              .outside = room, .outside_room = outside_room};
    }
    s->inners += thread->inner_search != s->searches;
    thread->inner_search = s->searches;
    thread->inner_number = one->number;
}

static void see_other(sonde_sampler *s, const sonde_thread_entry *entry, const sonde_interpreter *one)
{
    sonde_sampled_thread *thread = sonde_threads_find(&s->threads, entry->state);
    if (thread != NULL && thread->view.id == entry->id && thread->number == one->number)
        return;
    if (thread != NULL)
        end_known(s, thread); /* another thread has its place in memory now */
    thread = sonde_threads_find_tid(&s->threads, entry->tid);
    if (thread != NULL) {
        set_inner(s, thread, entry, one);
        return;
    }
    thread = add(s, entry, one->address);
    if (thread != NULL)
        thread->number = one->number;
}

static void search_other(sonde_sampler *s, const sonde_interpreter *one)
{
    sonde_thread_entry entry;
    for (uintptr_t at = one->head; at != 0; at = entry.next) {
        if (sonde_frames_entry(at, one->address, &entry) < 0)
            return; /* the list has changed: next time */
        if (entry.tid == 0 || !entry.has_frames || is_ours(s, entry.tid))
            continue;
        if (may_be_of_another_thread(&entry))
            s->sums.skipped_interpreters++;
        else
            see_other(s, &entry, one);
    }
}

static void forget_inners(sonde_sampler *s)
{
    for (uint32_t i = 0; i < s->threads.count; i++)
        if (s->threads.list[i]->inner_search != s->searches)
            s->threads.list[i]->inner.state = 0;
}

void sonde_sampler_search(sonde_sampler *s, int64_t now_ns)
{
    uintptr_t at = sonde_interpreters_newest();
    search_main(s, now_ns);
    if (at == 0 && s->inners == 0)
        return;
    if (PY_VERSION_HEX < 0x030C0000) { /* there an interpreter does not know which thread runs it */
        s->sums.skipped_interpreters++;
        return;
    }
    uint32_t inners = s->inners;
    sonde_interpreter one;
    s->inners = 0;
    s->searches++;
    for (int i = 0; at != 0 && i < MOST_INTERPRETERS && sonde_interpreters_read(at, &one) == 0; i++) {
        if (one.number != 0)
            search_other(s, &one);
        at = one.next;
    }
    s->sums.skipped_interpreters += at != 0;
    if (inners > 0 || s->inners > 0)
        forget_inners(s);
}

#endif
