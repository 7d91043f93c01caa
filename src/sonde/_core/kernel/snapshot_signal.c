/* A signal that asks for a snapshot.
 *
 * Python runs its handlers when the main thread is back in Python, which may be minutes later.
 * This handler is in C: it raises a number in the control page, rings the bell, and passes the
 * signal on to the handler that was there before.
 */
#include "kernel/snapshot_signal.h"
#include "kernel/fork.h"

#include <errno.h>
#include <signal.h>

static sonde_control *asked; /* atomic; NULL: nobody records */
static struct sigaction before;
static int caught; /* the signal's number; 0: none */

static void on_signal(int number, siginfo_t *info, void *context)
{
    int kept = errno;
    sonde_control *page = sonde_load_acquire(&asked);
    if (page != NULL) {
        sonde_increment_ordered(&page->snapshot_asked);
        sonde_control_ring(page);
    }
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
    errno = kept;
}

/* A handler that was installed after ours stays, and may pass the signal on to us. */
static void give_back(void)
{
    struct sigaction now;
    if (caught && sigaction(caught, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) &&
        now.sa_sigaction == on_signal)
        sigaction(caught, &before, NULL);
    caught = 0;
}

void sonde_signal_release(void)
{
    sonde_store_release(&asked, NULL);
    give_back();
}

/* The page is the parent's, and the signal is the program's. */
SONDE_IN_CHILD(sonde_signal_release)

int sonde_signal_catch(int number, sonde_control *page)
{
    struct sigaction now, ours = {.sa_sigaction = on_signal};
    if (sigaction(number, NULL, &now) < 0)
        return -errno;
    /* After a fork our handler is there already, and must not pass the signal on to itself. */
    if (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != on_signal) {
        int is_handled = (now.sa_flags & SA_SIGINFO) ||
                         (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN);
        before = now;
        ours.sa_mask = now.sa_mask;
        /* A handler of the program that wants system calls to end early still gets that. */
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (is_handled ? now.sa_flags & SA_RESTART : SA_RESTART);
        if (sigaction(number, &ours, NULL) < 0)
            return -errno;
    }
    caught = number;
    sonde_store_release(&asked, page);
    return 0;
}
