/* Where a program is: its thread, and its context if the program made one. Needs the GIL.
 *
 * In such a context (a task of asyncio) a context variable says which region is the innermost
 * one, and tasks inherit it; elsewhere a variable of the thread does, at a tenth of the cost. */
#ifndef SONDE_PLACE_H
#define SONDE_PLACE_H

#include "binding/binding.h"
#include "kernel/thread.h"

typedef struct {
    int32_t tid; /* the kernel's number of this thread */
    int in_context;
    const void *context; /* only for comparison, never dereferenced; NULL: not in a context */
} sonde_event_place;

#if PY_VERSION_HEX < 0x03100000
/* CPython's own struct, which is the same from 3.7 to 3.15. */
typedef struct {
    PyObject_HEAD
    PyObject *prev, *vars, *weakrefs;
    int is_entered;
} sonde_context;
#endif

static inline sonde_event_place sonde_here(void)
{
    sonde_event_place here = {.tid = sonde_find_tid(), .context = PyThreadState_Get()->context};
#if PY_VERSION_HEX < 0x03100000
    /* A thread's own context is made when it is first needed, maybe between the beginning and the
     * end of a region. */
    here.in_context = here.context != NULL && ((const sonde_context *)here.context)->is_entered;
    if (!here.in_context)
        here.context = NULL;
#else
    here.in_context = 1;
#endif
    return here;
}

#endif
