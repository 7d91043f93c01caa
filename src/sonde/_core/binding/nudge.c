/* Making Python see a pending call. */
#include "binding/binding.h"
#include "binding/nudge.h"
#include "kernel/thread.h"

static void *nudge(void *arg)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyGILState_Release(gil);
    sonde_store_release(&((sonde_nudge *)arg)->running, 0);
    return NULL;
}

void sonde_nudge_join(sonde_nudge *self)
{
    if (self->is_made)
        pthread_join(self->thread, NULL);
    self->is_made = 0;
}

void sonde_nudge_begin(sonde_nudge *self)
{
    if (sonde_load_acquire(&self->running))
        return;
    sonde_nudge_join(self); /* it has ended, or is about to */
    self->running = 1;
    self->is_made = sonde_thread_start(nudge, self, &self->thread) == 0;
    if (!self->is_made)
        self->running = 0;
}
