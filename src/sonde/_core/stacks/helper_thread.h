/* A thread that takes the GIL so that the sampler need not.
 *
 * Thread names, locals and asyncio's tasks are Python objects. A short-lived native thread takes
 * the GIL like any other thread and reads them, so the sampler itself never waits for the GIL,
 * and a main thread that is stuck in C code (without the GIL) stops nobody. */
#ifndef SONDE_HELPER_THREAD_H
#define SONDE_HELPER_THREAD_H

#include "binding/binding.h"

/* Start the helper, which calls `inspect(wants)` and stores its own thread id in `*tid`. Returns 1,
 * or 0 if it could not be started or still runs: ask again later. No GIL. Never in two threads at
 * once; `inspect` and `tid` stay valid until sonde_helper_join() returns 0. */
int sonde_helper_ask(PyObject *inspect, int wants, uint32_t *tid);

/* Wait until the helper has ended, for two seconds at most. Returns 0, or -ETIMEDOUT if it is
 * stuck: then it may still use what it was given. Needs the GIL, which it releases while it
 * waits; nobody may ask the helper meanwhile. In the helper itself it does nothing. */
int sonde_helper_join(void);

/* From now on it ends before a fork, in Pythons that would warn of it. Needs the GIL. */
void sonde_helper_follow_forks(void);

/* In the helper: let others have the GIL for so long, or until somebody waits for its end. */
void sonde_helper_pause(int us);

#endif
