/* A signal that asks for a snapshot.
 *
 * Python runs its handlers when the main thread is back in Python, which may be minutes later.
 * This handler is in C: it raises a number in the control page, rings the bell, and passes the
 * signal on to the handler that was there before.
 */
#include "kernel/snapshot_signal.h"
#include "kernel/code_range.h"
#include "kernel/fork.h"

#include <errno.h>
#include <signal.h>

SONDE_CHANGED_IN_CHILD static sonde_control *asked; /* atomic; NULL: nobody records */
/* The handler to pass the signal on to. The one that is not in use is written; then `before` is
 * switched, so that a handler in another thread never sees half of one. */
static struct sigaction handlers[2];
static struct sigaction *before = &handlers[0]; /* atomic */
SONDE_CHANGED_IN_CHILD static int caught; /* the signal's number; 0: none */
SONDE_CHANGED_IN_CHILD static int is_in_front;
static sonde_range interpreter_code;

static void on_signal(int number, siginfo_t *info, void *context)
{
    int kept = errno;
    sonde_control *page = sonde_load_acquire(&asked);
    /* Acquire: what the pointer names was written before the pointer. */
    const struct sigaction *next = sonde_load_acquire(&before);
    if (page != NULL) {
        sonde_increment_ordered(&page->snapshot_asked);
        sonde_control_ring(page);
    }
    if (next->sa_flags & SA_SIGINFO)
        next->sa_sigaction(number, info, context);
    else if (next->sa_handler != SIG_DFL && next->sa_handler != SIG_IGN)
        next->sa_handler(number);
    errno = kept;
}

static int is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_signal;
}

static void remember(const struct sigaction *action)
{
    struct sigaction *free_one = before == &handlers[0] ? &handlers[1] : &handlers[0];
    *free_one = *action;
    /* Release: see on_signal(). */
    sonde_store_release(&before, free_one);
}

/* Put our handler in front of `now`. Returns 0 or -errno. */
static int go_in_front(int number, struct sigaction now)
{
    struct sigaction was;
    do {
        int is_handled = (now.sa_flags & SA_SIGINFO) ||
                         (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN);
        struct sigaction ours = {.sa_sigaction = on_signal, .sa_mask = now.sa_mask};
        /* A handler of the program that wants system calls to end early still gets that. */
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (is_handled ? now.sa_flags & SA_RESTART : SA_RESTART);
        remember(&now);
        if (sigaction(number, &ours, &was) < 0)
            return -errno;
        /* Another thread may have installed one more meanwhile: then that one is next. */
        int is_other = !is_ours(&was) && (was.sa_handler != now.sa_handler || was.sa_flags != now.sa_flags);
        now = was;
        if (!is_other)
            return 0;
    } while (1);
}

/* A handler that was installed after ours stays, and may pass the signal on to us. */
static void give_back(void)
{
    struct sigaction now;
    if (caught && sigaction(caught, NULL, &now) == 0 && is_ours(&now))
        sigaction(caught, before, NULL);
    caught = is_in_front = 0;
}

void sonde_signal_rest(void)
{
    sonde_store_release(&asked, NULL);
}

void sonde_signal_release(void)
{
    sonde_signal_rest();
    give_back();
}

/* The page is the parent's, and the signal is the program's. */
SONDE_IN_CHILD(sonde_signal_release)

int sonde_signal_catch(int number, sonde_control *page, const void *interpreter)
{
    struct sigaction now;
    if (sigaction(number, NULL, &now) < 0)
        return -errno;
    if (sonde_find_object(interpreter, &interpreter_code) < 0)
        interpreter_code = (sonde_range){0, 0};
    /* After a fork our handler is there already, and must not pass the signal on to itself. */
    int status = is_ours(&now) ? 0 : go_in_front(number, now);
    if (status < 0)
        return status;
    caught = number;
    sonde_store_release(&asked, page);
    return 0;
}

/* Python's own handler has neither flag. faulthandler's has SA_NODEFER if it calls the handler
 * that was there before: ours, which would call it again. */
static int is_pythons(const struct sigaction *action)
{
    uintptr_t handler = (uintptr_t)action->sa_handler;
    return !(action->sa_flags & (SA_SIGINFO | SA_NODEFER)) && handler >= interpreter_code.begin &&
           handler < interpreter_code.end;
}

int sonde_signal_renew(void)
{
    struct sigaction now;
    if (!caught || sigaction(caught, NULL, &now) < 0)
        return SONDE_SIGNAL_OURS;
    if (is_ours(&now))
        return is_in_front ? SONDE_SIGNAL_IN_FRONT : SONDE_SIGNAL_OURS;
    if (!(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL)
        return SONDE_SIGNAL_DEFAULT;
    if (!(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_IGN)
        return SONDE_SIGNAL_IGNORED;
    if (!is_pythons(&now) || go_in_front(caught, now) < 0)
        return SONDE_SIGNAL_REPLACED;
    is_in_front = 1;
    return SONDE_SIGNAL_IN_FRONT;
}
