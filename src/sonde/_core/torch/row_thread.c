/* The thread that writes rows of calls while the program goes on. */
#define _GNU_SOURCE 1
#include "torch/torch.h"
#include "kernel/fork.h"
#include "kernel/thread.h"

#include <time.h>

#define NAP_NS INT64_C(50000000)
#define REST_NS 200000000 /* how long a fork waits at most for the thread to end */

static struct {
    pthread_t thread;
    int is_made;    /* there is one, or one that has ended and was not joined */
    int is_resting; /* it has ended, or is about to, for a fork */
} writer;

static void *run(void *Py_UNUSED(arg))
{
    for (;;) {
        sonde_wait(&sonde_torch.leave, 0, NAP_NS);
        if (sonde_load_acquire(&sonde_torch.leave))
            return NULL; /* at once: a fork may wait for this */
        sonde_torch_rows_write(0);
    }
}

static int start(void)
{
    sonde_store_release(&sonde_torch.leave, 0);
    int status = sonde_thread_start(run, NULL, &writer.thread);
    writer.is_made = status == 0;
    return status;
}

static void ask_to_leave(void)
{
    sonde_store_release(&sonde_torch.leave, 1);
    sonde_wake(&sonde_torch.leave);
}

/* ---- forks ------------------------------------------------------------------------------- */

/* Python would warn of it. The thread does not want the GIL, which the caller has; but it asks about
 * events of a device, so it may have to wait for others that use that. */
static void rest(void)
{
    struct timespec end;
    if (!writer.is_made)
        return;
    ask_to_leave();
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += REST_NS;
    if (end.tv_nsec >= 1000000000) {
        end.tv_nsec -= 1000000000;
        end.tv_sec++;
    }
    writer.is_resting = 1;
    writer.is_made = pthread_timedjoin_np(writer.thread, NULL, &end) != 0;
}

static void wake(void)
{
    if (!writer.is_resting)
        return;
    writer.is_resting = 0;
    if (!writer.is_made || pthread_tryjoin_np(writer.thread, NULL) == 0)
        (void)start(); /* if there is no room for it, the rows are written in the end */
    else
        sonde_store_release(&sonde_torch.leave, 0);
}

/* ---- start and stop ------------------------------------------------------------------------ */

int sonde_torch_rows_start(const sonde_torch_texts *texts)
{
    sonde_torch_rows_begin(texts);
    sonde_torch_pace_start();
    sonde_at_fork(rest, wake);
    return start();
}

void sonde_torch_rows_stop(void)
{
    if (!writer.is_made && !writer.is_resting)
        return;
    int is_made = writer.is_made;
    writer.is_made = writer.is_resting = 0;
    ask_to_leave();
    if (is_made)
        pthread_join(writer.thread, NULL);
    sonde_torch_rows_write(0);
    sonde_torch_rows_write(1);
    sonde_torch_pace_stop();
}

/* The thread, and the ring that it writes to, belong to the parent. */
static void forget_in_child(void)
{
    SONDE_RESET(writer.is_made, 0);
    SONDE_RESET(writer.is_resting, 0);
}

SONDE_IN_CHILD(forget_in_child)
