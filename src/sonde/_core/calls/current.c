/* The calls of the current thread: how they are found, made, and kept until the thread ends. */
#include "calls/hook.h"

#include <pthread.h>

sonde_CallTracer *sonde_call_tracer;

__thread sonde_call_current sonde_call_here;
static pthread_key_t end_key;

static void on_thread_end(void *arg)
{
    /* Here we have no GIL, so only say so; the next publication adds this thread's numbers. */
    sonde_call_thread *calls = arg;
    sonde_call_here.epoch = 0;
    /* Release: all that this thread wrote is visible before this. */
    sonde_store_release(&calls->ended, 1);
    sonde_call_thread_release(calls);
}

sonde_call_thread *sonde_call_join(void)
{
    if (sonde_call_tracer == NULL)
        return NULL;
    unsigned long ident = PyThread_get_thread_ident();
    sonde_call_thread *calls = sonde_calls.threads;
    while (calls != NULL && (calls->claimed || calls->ident != ident))
        calls = calls->next;
    if (calls == NULL)
        calls = sonde_call_thread_make(ident, PyThreadState_GetID(PyThreadState_Get()));
    if (calls == NULL)
        return NULL;
    sonde_call_thread *before = pthread_getspecific(end_key);
    if (pthread_setspecific(end_key, calls) != 0)
        return NULL;
    if (before != NULL)
        sonde_call_thread_release(before);
    calls->claimed = 1;
    sonde_add_relaxed(&calls->owners, 1);
    sonde_call_here = (sonde_call_current){sonde_calls.epoch, calls};
    return calls;
}

void sonde_unmute(const void *code)
{
    if (sonde_call_here.epoch != sonde_calls.epoch || sonde_calls.muted != code)
        return;
    sonde_call_here.epoch = 0; /* this thread's next event finds its calls in progress */
    Py_CLEAR(sonde_calls.muted);
}

int sonde_calls_watch_threads(void)
{
    static int has_key;
    if (!has_key && pthread_key_create(&end_key, on_thread_end) != 0)
        return -1;
    has_key = 1;
    return 0;
}
