/* How the interpreter reports calls to the call tracer. Everything here needs the GIL. */
#ifndef SONDE_HOOK_H
#define SONDE_HOOK_H

#include "calls/calls.h"

#include <frameobject.h>

#define SONDE_INSTRUCTION_BYTES 2

typedef struct {
    PyObject_HEAD
    PyObject *rows, *publications; /* writers */
    PyObject *own_folder;   /* a str: code in this folder that starts us is not part of the program */
    int64_t every_ns, due_ns;
    int tool; /* of sys.monitoring */
} sonde_CallTracer;

extern sonde_CallTracer *sonde_call_tracer; /* or NULL */

typedef struct {
    uint64_t epoch;
    sonde_call_thread *calls;
} sonde_call_current;

extern __thread sonde_call_current sonde_call_here;

/* Return the calls of this thread, which are found or made; NULL if nothing is traced. */
sonde_call_thread *sonde_call_join(void);

/* Notice from now on when threads end. Returns 0, or -1 if no thread-specific key is left. */
int sonde_calls_watch_threads(void);

/* Note that this code returns in a thread that is not traced (yet). */
void sonde_unmute(const void *code);

static inline sonde_call_thread *sonde_call_thread_here(void)
{
    return sonde_call_here.epoch == sonde_calls.epoch ? sonde_call_here.calls : sonde_call_join();
}

/* Every handler calls this last. */
static inline void sonde_publish_if_due(const sonde_call_thread *calls)
{
    if (calls->last >= sonde_calls.publish_at)
        sonde_calls.publish_due();
}

/* Have the interpreter call us from now on. Returns 0, or -1 with RuntimeError where that is not
 * possible. */
int sonde_hook(sonde_CallTracer *self);
void sonde_unhook(sonde_CallTracer *self);

/* Return how many threads have, or had, a profile function of the program's instead of ours. */
long sonde_count_unhooked(void);

/* ---- events, as both kinds of hook have them ------------------------------------------ */

/* Has this frame not run before? */
static inline int sonde_is_fresh(PyFrameObject *frame, PyObject *code)
{
#if PY_VERSION_HEX >= 0x030B0000
    int first = ((PyCodeObject *)code)->_co_firsttraceable * SONDE_INSTRUCTION_BYTES;
    return PyFrame_GetLasti(frame) <= first;
#else
    (void)code;
    return frame->f_lasti < 0;
#endif
}

static inline void sonde_enter_builtin(sonde_call_thread *calls, PyObject *builtin, const void *key)
{
    sonde_callee callee = {key, NULL, builtin};
    sonde_tick(calls);
    (void)sonde_enter(calls, &callee);
}

static inline void sonde_leave_builtin(sonde_call_thread *calls, const void *key)
{
    sonde_tick(calls);
    if (calls->top->edge->key == key)
        sonde_leave(calls);
    else
        sonde_leave_other(calls, key, NULL, 0);
}

#endif
