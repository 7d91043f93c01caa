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

enum { SONDE_SLOTS = 256, SONDE_AT_ONCE = 8, SONDE_CONDITIONS = 64 };

typedef struct {
    int64_t due_ns;   /* atomic; 0: not armed */
    int64_t since_ns; /* the value is the time from this on, in seconds; 0: it is `value` */
    double value;
    uint32_t tid, condition;
    int is_bare; /* its stack is of no use */
} sonde_trigger_slot;

typedef struct {
    double limit;
    uint32_t condition;
    uint8_t is_below, is_met;
} sonde_trigger_counter;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *counters; /* a dict: name -> tuple of numbers of `watched` */
    PyObject *other;    /* other(*event): called for events that are not of counters */
    sonde_trigger_counter watched[SONDE_CONDITIONS];
    uint32_t watched_n;
    PyObject *map;
    sonde_ring_handle ring;
    uint32_t texts[SONDE_CONDITIONS];
    uint32_t conditions, most;
    uint32_t still;         /* condition that is met when nothing moves, plus 1; atomic, as is the limit */
    int64_t still_limit_ns;
    int64_t stood_ns;       /* since when everything stood still, when that condition was last met */
    uint32_t memory;        /* condition about the size of the process, plus 1 */
    double memory_limit;    /* in bytes */
    int64_t checked_ns;
    double peak_bytes;      /* nonzero: that condition is met */
    uint64_t number, missed;
    int64_t hour_ns; /* when the current hour began, and how many rows it has */
    uint32_t in_hour;
    sonde_trigger_slot slots[SONDE_SLOTS + SONDE_AT_ONCE]; /* the last ones are for fire() */
} sonde_Trigger;

/* Watch these conditions from now on. Returns 0 if others are watched already. The caller keeps the
 * object until sonde_triggers_end(), which returns whether it was the one. */
int sonde_triggers_begin(sonde_Trigger *trigger);
int sonde_triggers_end(sonde_Trigger *trigger);

/* Is a condition met? If so, first sample every thread, again if that fails for one that is
 * concerned (sonde_triggers_seen), then call sonde_triggers_write(). */
int sonde_triggers_due(const sonde_sampler *sampler, int64_t now_ns);
int sonde_triggers_seen(const sonde_sampler *sampler, int64_t since_ns);
void sonde_triggers_write(sonde_sampler *sampler, int64_t now_ns);

/* Return when to look again at the latest; INT64_MAX: nothing is watched. */
int64_t sonde_triggers_next(const sonde_sampler *sampler);

extern PyTypeObject sonde_TriggerType;

#endif
