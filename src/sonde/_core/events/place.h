/* Where a program is: its thread, and its context if that is one of its own making. Needs the GIL.
 *
 * In such a context (a task of asyncio's) a context variable tells which region is the innermost
 * one, and tasks inherit it; else the thread does, which costs a tenth of that. */
#ifndef SONDE_PLACE_H
#define SONDE_PLACE_H

#include "binding/binding.h"

typedef struct {
    int32_t tid; /* the kernel's number of this thread */
    int in_context;
    const void *context; /* to be compared and never followed; NULL: not in one */
} sonde_place;

typedef struct {
    uint32_t forks;
    int32_t tid;
} sonde_thread;

#if PY_VERSION_HEX < 0x030E0000
/* CPython's own, the same from 3.7 to 3.13. */
typedef struct {
    PyObject_HEAD
    PyObject *prev, *vars, *weakrefs;
    int is_entered;
} sonde_context;
#endif

/* Not PyThreadState's: a program in C may make one in this thread and use it in that. */
extern __thread sonde_thread sonde_me;
extern uint32_t sonde_forks; /* that lie behind this process: thread ids are other ones after each */

int32_t sonde_ask_tid(void);

static inline int32_t sonde_find_tid(void)
{
    return sonde_me.forks == sonde_forks ? sonde_me.tid : sonde_ask_tid();
}

static inline sonde_place sonde_find_place(void)
{
    sonde_place here = {.tid = sonde_find_tid(), .context = PyThreadState_Get()->context};
#if PY_VERSION_HEX < 0x030E0000
    /* A thread's own is made when it is first needed, so it may come between begin and end. */
    here.in_context = here.context != NULL && ((const sonde_context *)here.context)->is_entered;
    if (!here.in_context)
        here.context = NULL;
#else
    here.in_context = 1;
#endif
    return here;
}

#endif
