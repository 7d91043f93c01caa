/* The chores of the native thread; none of them needs Python. */
#include "kernel/upkeep.h"
#include "kernel/collector_lock.h"
#include "kernel/filter.h"
#include "kernel/snapshot_signal.h"

/* How old an answer may be when a turn begins: to look for a filter takes 10 to 20 us. Shorter than any
 * usual turn, so that each begins with a look. */
#define FILTER_NS 500000
/* At most one snapshot in this time: writing one takes a tenth of a second. */
#define SNAPSHOT_NS 300000000
/* How often to check whether there is a collector. */
#define KEEP_NS 500000000
/* How long a worker of a job that adopts orphans leaves that to the job. */
#define PARENT_NS 10000000000

/* Remember a state that has changed until Python asks for it. */
static void tell(sonde_upkeep *self, int *field, int value, uint32_t which)
{
    if (sonde_load_relaxed(field) == value)
        return;
    sonde_store_relaxed(field, value);
    /* Release: the value is there when the bit is seen. */
    sonde_or_release(&self->unreported, which);
}

static void start_command(sonde_upkeep *self, int command)
{
    self->keeper.may_hold = !sonde_had_filter();
    tell(self, &self->start_status, sonde_keeper_start(&self->keeper, command), SONDE_START_CHANGED);
}

static int has_snapshot(const sonde_upkeep *self)
{
    char **command = self->keeper.commands[SONDE_SNAPSHOT];
    return command != NULL && command[0] != NULL;
}

static void keep_collector(sonde_upkeep *self)
{
    int64_t now = sonde_clock_ns();
    if ((self->checked_ns && now - self->checked_ns < KEEP_NS) || sonde_has_later_filter_within(SONDE_NOW_NS))
        return;
    if (!self->checked_ns && (self->lock != NULL || has_snapshot(self)))
        tell(self, &self->start_status, sonde_keeper_prepare(&self->keeper), SONDE_START_CHANGED);
    /* The parent starts a collector; one of ours would become its child when we end. */
    if (!self->checked_ns && sonde_is_below_adopter())
        self->wait_ns = now + PARENT_NS;
    self->checked_ns = now;
    sonde_keeper_beat(&self->keeper);
    tell(self, &self->signal_state, sonde_signal_renew(), SONDE_SIGNAL_CHANGED);
    if (self->lock == NULL || now < self->wait_ns || !sonde_collector_claim(self->lock))
        return;
    /* After a failure we try again later; the recording goes on without a collector. */
    start_command(self, SONDE_COLLECTOR);
}

/* Several signals at once make one snapshot; a storm of them makes a few a second. */
static void take_snapshot(sonde_upkeep *self, sonde_control *page)
{
    uint64_t asked = sonde_load_acquire(&page->snapshot_asked);
    int64_t now_ns = sonde_clock_ns();
    if (asked == sonde_load_acquire(&page->snapshots) ||
        (self->snapshot_ns && now_ns - self->snapshot_ns < SNAPSHOT_NS) ||
        sonde_has_later_filter_within(SONDE_NOW_NS))
        return;
    self->snapshot_ns = now_ns;
    sonde_store_release(&page->snapshots, asked);
    start_command(self, SONDE_SNAPSHOT);
}

void sonde_upkeep_turn(sonde_upkeep *self, sonde_control *page)
{
    /* What a new filter forbids is not known: from now on this thread makes few system calls. */
    if (self->is_filtered || sonde_has_later_filter_within(FILTER_NS)) {
        tell(self, &self->is_filtered, 1, SONDE_FILTER_CHANGED);
        return;
    }
    keep_collector(self);
    take_snapshot(self, page);
}
