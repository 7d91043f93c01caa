/* Trigger: see trigger.h. Python arms slots, the native thread finds those that are due.
 *
 * A slot is due at a time. A step or a span that must not last longer than a second arms one when it
 * begins, for a second later, and disarms it when it ends; a counter arms one for right now.
 */
#define _GNU_SOURCE 1
#include "stacks/trigger.h"
#include "kernel/fork.h"
#include "kernel/thread.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define HOUR_NS INT64_C(3600000000000)
#define MEMORY_NS INT64_C(1000000000) /* between two looks at the size of the process */

SONDE_CHANGED_IN_CHILD static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `current` */
SONDE_CHANGED_IN_CHILD static sonde_Trigger *current;

static void forget_in_child(void)
{
    current = NULL;
    SONDE_RESET(lock, PTHREAD_MUTEX_INITIALIZER);
}

SONDE_IN_CHILD(forget_in_child)

/* ---- the native thread ------------------------------------------------------------------ */

static int is_still(const sonde_Trigger *self, const sonde_sampler *s, int64_t now_ns)
{
    return sonde_load_relaxed(&self->still) && s->moved_ns != self->stood_ns &&
           now_ns - s->moved_ns > sonde_load_relaxed(&self->still_limit_ns);
}

/* The kernel keeps the most memory that the process ever had, so no moment is missed. */
static int is_large(sonde_Trigger *self, int64_t now_ns)
{
    struct rusage usage;
    if (self->memory == 0 || self->peak_bytes > 0 || now_ns - self->checked_ns < MEMORY_NS)
        return 0;
    self->checked_ns = now_ns;
    if (getrusage(RUSAGE_SELF, &usage) < 0 || (double)usage.ru_maxrss * 1024 <= self->memory_limit)
        return 0;
    self->peak_bytes = (double)usage.ru_maxrss * 1024;
    return 1;
}

static int is_due(const sonde_trigger_slot *one, int64_t now_ns)
{
    /* Acquire: the fields of a slot are written before the time at which it is due. */
    int64_t due_ns = sonde_load_acquire(&one->due_ns);
    return due_ns != 0 && due_ns <= now_ns;
}

static int find_due(sonde_Trigger *self, const sonde_sampler *s, int64_t now_ns)
{
    for (int i = 0; i < SONDE_SLOTS + SONDE_AT_ONCE; i++)
        if (is_due(&self->slots[i], now_ns))
            return 1;
    return is_still(self, s, now_ns) || is_large(self, now_ns);
}

int sonde_triggers_due(const sonde_sampler *s, int64_t now_ns)
{
    if (sonde_load_relaxed(&current) == NULL || !sonde_load_acquire(&s->page->on))
        return 0;
    pthread_mutex_lock(&lock);
    int found = current != NULL && find_due(current, s, now_ns);
    pthread_mutex_unlock(&lock);
    return found;
}

static int is_seen(const sonde_sampler *s, uint32_t tid, int64_t since_ns)
{
    for (uint32_t i = 0; i < s->threads.count; i++)
        if (s->threads.list[i]->tid == tid)
            return s->threads.list[i]->seen_ns >= since_ns;
    return 0;
}

int sonde_triggers_seen(const sonde_sampler *s, int64_t since_ns)
{
    pthread_mutex_lock(&lock);
    int seen = is_seen(s, (uint32_t)getpid(), since_ns);
    for (int i = 0; seen && current != NULL && i < SONDE_SLOTS + SONDE_AT_ONCE; i++)
        if (is_due(&current->slots[i], since_ns) && !current->slots[i].is_bare)
            seen = is_seen(s, current->slots[i].tid, since_ns);
    pthread_mutex_unlock(&lock);
    return seen;
}

/* Return the stack that the thread was last seen with; 0: none. */
static uint64_t find_stack(const sonde_sampler *s, uint32_t tid)
{
    for (uint32_t i = 0; i < s->threads.count; i++) {
        const sonde_sampled_thread *thread = s->threads.list[i];
        if (thread->tid == tid && thread->node != 0)
            return sonde_nodes_at(&s->nodes, thread->node)->hash;
    }
    return 0;
}

/* May there be another row in this hour? */
static int has_room(sonde_Trigger *self, int64_t now_ns)
{
    if (self->hour_ns == 0 || now_ns - self->hour_ns > HOUR_NS) {
        self->hour_ns = now_ns;
        self->in_hour = 0;
    }
    if (self->in_hour >= self->most) {
        self->missed++;
        return 0;
    }
    self->in_hour++;
    return 1;
}

static void write_row(sonde_Trigger *self, const sonde_sampler *s, int64_t now_ns, const sonde_trigger_slot *met)
{
    if (!has_room(self, now_ns))
        return;
    sonde_trigger_row row = {
        .t_ns = now_ns,
        .number = ++self->number,
        .condition = self->texts[met->condition],
        .value = met->since_ns ? (double)(now_ns - met->since_ns) / 1e9 : met->value,
        .thread = met->tid,
        .stack = met->is_bare ? 0 : find_stack(s, met->tid),
        .missed = self->missed,
    };
    uint32_t nulls = (isnan(row.value) ? TRIGGER_VALUE : 0) | (row.stack ? 0 : TRIGGER_STACK);
    uint64_t words[sizeof row / 8];
    memcpy(words, &row, sizeof row);
    self->missed = 0;
    (void)sonde_ring_append(&self->ring, words, nulls); /* a drop is counted there */
}

static void write_slot(sonde_Trigger *self, const sonde_sampler *s, int64_t now_ns, sonde_trigger_slot *one)
{
    /* Acquire: as in is_due(). */
    int64_t due_ns = sonde_load_acquire(&one->due_ns);
    sonde_trigger_slot copy = *one;
    /* Release: the copy is made before Python may use the slot again. If it was disarmed or armed
     * anew meanwhile, what the copy holds is not wanted. */
    if (due_ns != 0 && due_ns <= now_ns && sonde_cas_release(&one->due_ns, &due_ns, 0))
        write_row(self, s, now_ns, &copy);
}

static void write_all(sonde_Trigger *self, sonde_sampler *s, int64_t now_ns)
{
    for (int i = 0; i < SONDE_SLOTS + SONDE_AT_ONCE; i++)
        write_slot(self, s, now_ns, &self->slots[i]);
    uint32_t main_tid = (uint32_t)getpid();
    if (is_still(self, s, now_ns)) {
        self->stood_ns = s->moved_ns;
        sonde_trigger_slot met = {.since_ns = s->moved_ns, .tid = main_tid, .condition = self->still - 1};
        write_row(self, s, now_ns, &met);
    }
    if (self->peak_bytes > 0 && self->memory != 0) {
        sonde_trigger_slot met = {.value = self->peak_bytes, .tid = main_tid, .condition = self->memory - 1};
        self->memory = 0; /* once */
        write_row(self, s, now_ns, &met);
    }
}

void sonde_triggers_write(sonde_sampler *s, int64_t now_ns)
{
    pthread_mutex_lock(&lock);
    if (current != NULL)
        write_all(current, s, now_ns);
    pthread_mutex_unlock(&lock);
}

static int64_t find_next(const sonde_Trigger *self, const sonde_sampler *s)
{
    int64_t next_ns = self->memory ? self->checked_ns + MEMORY_NS : INT64_MAX;
    for (int i = 0; i < SONDE_SLOTS + SONDE_AT_ONCE; i++) {
        int64_t due_ns = sonde_load_relaxed(&self->slots[i].due_ns);
        if (due_ns != 0 && due_ns < next_ns)
            next_ns = due_ns;
    }
    int64_t still_ns = s->moved_ns + sonde_load_relaxed(&self->still_limit_ns) + 1;
    if (sonde_load_relaxed(&self->still) && s->moved_ns != self->stood_ns && still_ns < next_ns)
        next_ns = still_ns;
    return next_ns;
}

int64_t sonde_triggers_next(const sonde_sampler *s)
{
    int64_t next_ns = INT64_MAX;
    if (sonde_load_relaxed(&current) == NULL || !sonde_load_acquire(&s->page->on))
        return next_ns;
    pthread_mutex_lock(&lock);
    if (current != NULL)
        next_ns = find_next(current, s);
    pthread_mutex_unlock(&lock);
    return next_ns;
}

int sonde_triggers_begin(sonde_Trigger *self)
{
    pthread_mutex_lock(&lock);
    int is_first = current == NULL;
    if (is_first)
        sonde_store_relaxed(&current, self);
    pthread_mutex_unlock(&lock);
    return is_first;
}

int sonde_triggers_end(sonde_Trigger *self)
{
    pthread_mutex_lock(&lock);
    int was_current = current == self;
    if (was_current)
        sonde_store_relaxed(&current, NULL);
    pthread_mutex_unlock(&lock);
    return was_current;
}
