/* Threads that wait for a lock: see lock_waits.h.
 *
 * Nothing is put in front of locks. A thread that waits stands still, so the lock lies among the values of
 * its innermost frame. An RLock says who holds it. A lock that does not say is held by the thread that is
 * inside of a `with` block of it; if there is none, nobody can tell. */
#define _GNU_SOURCE 1
#include "stacks/sampler.h"
#include "stacks/frame_layout.h"
#include "stacks/with_blocks.h"
#include "kernel/read_memory.h"

#include <string.h>

#define FIRST_NS 1000000000 /* a thread that has waited for less is not looked at, unless somebody asks */
#define LATER_NS 60000000000 /* the longest time between two looks at a thread that still waits */
#define MOST_NS 1000000      /* for all threads, in one sample; the others are looked at in the next one */
#define MOST_ASKED_NS 50000000

#if SONDE_HAS_LOCKS

enum { NO_HOLDER = 1, NO_STACK = 2, NO_PLACE = 4 | 8 | 16 }; /* optional columns that are NULL */

typedef struct {
    sonde_sampled_thread *thread; /* NULL: not known */
    sonde_with_place place;       /* where it took the lock; .frame is 0 if that is not known */
    uint32_t kind;                /* a text id */
} holder;

/* Return the place of the lock's `with` block, if the thread is in it at two looks. */
static int is_inside(const sonde_sampled_thread *thread, const sonde_lock *lock, sonde_with_place *place)
{
    sonde_with_place again;
    if (!sonde_with_find(&thread->view, lock, place) || !sonde_with_find(&thread->view, lock, &again))
        return 0;
    return again.frame == place->frame && again.line == place->line;
}

static uintptr_t read_owner_id(const sonde_sampled_thread *thread)
{
    unsigned long id = 0;
    (void)sonde_read_memory(&id, thread->view.state + offsetof(PyThreadState, thread_id), sizeof id);
    return id;
}

/* Until 3.12 a thread that is joined holds a lock until it ends; only its state refers to that lock. */
static int ends_with_lock(const sonde_sampled_thread *thread, const sonde_lock *lock)
{
#if PY_VERSION_HEX < 0x030d0000
    uintptr_t reference = 0, object = 0;
    return sonde_read_memory(&reference, thread->view.state + offsetof(PyThreadState, on_delete_data),
                             sizeof reference) == 0 && may_be_frame(reference) &&
           sonde_read_memory(&object, reference + offsetof(PyWeakReference, wr_object), sizeof object) == 0 &&
           object == lock->object;
#else
    (void)thread;
    (void)lock;
    return 0;
#endif
}

static holder find_holder(sonde_sampler *s, const sonde_lock *lock)
{
    holder found = {.kind = lock->kind == SONDE_RLOCK ? s->rlock_text : s->lock_text};
    for (uint32_t i = 0; i < s->threads.count; i++) {
        sonde_sampled_thread *one = s->threads.list[i];
        int is_owner = lock->owner && read_owner_id(one) == lock->owner;
        if (lock->kind == SONDE_LOCK && ends_with_lock(one, lock))
            return (holder){.thread = one, .kind = s->end_text};
        /* Who waits for a condition may have given back the very lock of its `with`. */
        if ((lock->kind == SONDE_LOCK && !one->is_in_condition) || is_owner)
            is_owner |= is_inside(one, lock, &found.place);
        if (is_owner) {
            found.thread = one;
            return found;
        }
        found.place.frame = 0;
    }
    return found;
}

static void write_row(sonde_sampler *s, const sonde_sampled_thread *thread, const sonde_lock *lock, const holder *by)
{
    const sonde_sampled_thread *other = by->thread;
    sonde_lock_row row = {
        .t_ns = sonde_clock_ns(),
        .thread = thread->tid,
        .since_ns = thread->stood_ns,
        .lock = lock->object,
        .kind = by->kind,
        .holder = other ? other->tid : 0,
        .holder_stack = other && other->node ? sonde_nodes_at(&s->nodes, other->node)->hash : 0,
        .taken_func = by->place.func,
        .taken_file = by->place.file,
        .taken_line = by->place.line,
    };
    uint32_t nulls = (other == NULL ? NO_HOLDER : 0) | (row.holder_stack == 0 ? NO_STACK : 0) |
                     (other == NULL || by->place.frame == 0 ? NO_PLACE : 0);
    uint64_t words[sizeof row / 8] = {0};
    memcpy(words, &row, sizeof row);
    (void)sonde_ring_append(&s->lock_waits, words, nulls);
}

static void look_at(sonde_sampler *s, sonde_sampled_thread *thread)
{
    sonde_lock lock, again;
    sonde_thread_wait wait = sonde_wait_find(thread->tid);
    if (wait.kind != SONDE_WAIT_LOCK || !sonde_with_wanted(&thread->view, (uintptr_t)wait.lock, &lock))
        return;
    holder by = find_holder(s, &lock);
    /* Believe it only if the thread still waits, and the lock is still held as it was. */
    sonde_thread_wait still = sonde_wait_find(thread->tid);
    if (still.kind == wait.kind && still.lock == wait.lock &&
        sonde_with_wanted(&thread->view, (uintptr_t)wait.lock, &again) && again.object == lock.object &&
        again.owner == lock.owner)
        write_row(s, thread, &lock, &by);
}

void sonde_lock_waits_look(sonde_sampler *s, int64_t now_ns, int everyone)
{
    int64_t most_ns = everyone ? MOST_ASKED_NS : MOST_NS;
    for (uint32_t i = 0; s->knows_locks && i < s->threads.count; i++) {
        sonde_sampled_thread *thread = s->threads.list[i];
        int64_t waited_ns = now_ns - thread->stood_ns;
        if (thread->wait != SONDE_WAIT_LOCK || thread->node == 0 || thread->is_in_condition)
            continue;
        if (!everyone && (waited_ns < FIRST_NS || now_ns < thread->look_ns))
            continue;
        if (sonde_clock_ns() - now_ns > most_ns)
            return;
        look_at(s, thread);
        thread->look_ns = now_ns + (waited_ns < LATER_NS ? waited_ns : LATER_NS);
    }
}

#else

void sonde_lock_waits_look(sonde_sampler *s, int64_t now_ns, int everyone)
{
    (void)s;
    (void)now_ns;
    (void)everyone;
}

#endif
