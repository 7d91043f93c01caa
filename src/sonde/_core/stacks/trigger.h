/* Triggers: conditions that the native thread watches; when one is met, it writes a row with the
 * stack of the thread concerned. */
#ifndef SONDE_TRIGGER_H
#define SONDE_TRIGGER_H

#include "stacks/sampler.h"

/* A row of python.trigger; tables/trigger.py names the columns. */
typedef struct {
    int64_t t_ns;
    uint64_t number;
    uint32_t condition, pad; /* text id */
    double value;
    int64_t thread;
    uint64_t stack; /* a hash, as in python.stack_sample */
    uint64_t missed;
} sonde_trigger_row;

#define SONDE_TRIGGER_KINDS "qQtdqqQ"
enum { TRIGGER_VALUE = 1, TRIGGER_STACK = 2 }; /* what is NULL in a row */
_Static_assert(sizeof(sonde_trigger_row) == 56, "trigger layout");

/* Is a condition met? If so, first sample every thread, again if that fails for one that is
 * concerned (sonde_triggers_seen), then call sonde_triggers_write(). */
int sonde_triggers_due(const sonde_sampler *sampler, int64_t now_ns);
int sonde_triggers_seen(const sonde_sampler *sampler, int64_t since_ns);
void sonde_triggers_write(sonde_sampler *sampler, int64_t now_ns);

/* Return when to look again at the latest; INT64_MAX: nothing is watched. */
int64_t sonde_triggers_next(const sonde_sampler *sampler);

extern PyTypeObject sonde_TriggerType;

#endif
