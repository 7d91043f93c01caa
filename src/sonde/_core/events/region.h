/* A region and its activations: what the two files about them share. */
#ifndef SONDE_REGION_H
#define SONDE_REGION_H

#include "events/events.h"

enum state { FREE, WAITING, OPEN };

typedef struct activation {
    struct activation *below;
    sonde_event_place place; /* where it was begun */
    int64_t id, parent;
    int64_t outer; /* the region that was innermost before; 0: none */
    int64_t start_ns, paused_ns;
    int64_t number; /* of a frame */
    uint32_t slot, epoch, unseen;
    enum state state; /* WAITING: begun in a pause; FREE: the first one, not in use */
} activation;

typedef struct {
    SONDE_NAMED_HEAD
    vectorcallfunc call;
    PyObject *keys, *values; /* of attributes, two tuples; or NULL */
    int64_t under;           /* the parent that was given; 0: none */
    uint32_t kind;
    uint32_t unseen; /* activations begun and not ended while there was no recording */
    uint32_t depth;  /* activations on the heap */
    activation *top;
    activation first;
} RegionObject;

/* Begin the region once more. Returns 0, or -1 with an exception of the program. */
int sonde_region_begin(RegionObject *self);

/* End the innermost activation of this task, thread or program; `error` is the name of the
 * exception that ended it, or NULL. Does nothing if there is none. */
int sonde_region_end(RegionObject *self, PyObject *error);

/* Choose which of several activations would end. */
activation *sonde_region_choose(const RegionObject *self);

/* Return the activation that would end; NULL: none is open. */
static inline activation *sonde_region_find(const RegionObject *self)
{
    return self->top == NULL || self->top->below == NULL ? self->top : sonde_region_choose(self);
}

/* Does it have a number in this recording? */
static inline int sonde_region_is_seen(const activation *one)
{
    return one != NULL && one->state == OPEN && one->epoch == sonde_events.epoch;
}

/* End all activations: the object is being deleted. Keeps the exception that is set. */
void sonde_region_lose(RegionObject *self);

#endif
