#ifndef SONDE_NUDGE_H
#define SONDE_NUDGE_H

#include <pthread.h>
#include <stdint.h>

/* A thread that takes the GIL and releases it. Up to 3.12, a main thread that never releases the
 * GIL does not see a pending call that was queued by a thread without the GIL until another
 * thread asks for the GIL. */
typedef struct {
    pthread_t thread;
    int is_made;      /* made and not joined */
    uint32_t running; /* atomic */
} sonde_nudge;

/* On a later Python it would only be one more thread that Python may warn of at a fork. */
enum { SONDE_NEEDS_NUDGE = PY_VERSION_HEX < 0x030D0000 };

/* Start such a thread, unless one is running. */
void sonde_nudge_begin(sonde_nudge *nudge);

/* Wait for the thread, if there is one; without the GIL. */
void sonde_nudge_join(sonde_nudge *nudge);

#endif
