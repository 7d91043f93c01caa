/* What the native thread sees to now and then: the collector, snapshots, the signal for them. */
#ifndef SONDE_UPKEEP_H
#define SONDE_UPKEEP_H

#include "format/format.h"
#include "kernel/keeper.h"

/* Bits of `unreported`. */
enum { SONDE_START_CHANGED = 1, SONDE_SIGNAL_CHANGED = 2, SONDE_FILTER_CHANGED = 4 };

/* Zeroed by its owner, who sets the first two fields and owns their strings. */
typedef struct {
    char *lock; /* of the collector to keep alive; NULL: there is none */
    sonde_keeper keeper;
    int64_t checked_ns, wait_ns; /* when we looked for a collector; when we may start one */
    int64_t snapshot_ns; /* when the last snapshot was started */
    int start_status;    /* of the last command: 0 or -errno */
    int signal_state;    /* of the signal that asks for snapshots */
    int is_filtered;     /* system calls are filtered since the recording began */
    uint32_t unreported; /* atomic: which of the three has changed; whoever takes the bits clears them */
} sonde_upkeep;

/* See to all of it, as far as it is due. The native thread alone. */
void sonde_upkeep_turn(sonde_upkeep *upkeep, sonde_control *page);

#endif
