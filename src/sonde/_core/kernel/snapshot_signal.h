/* The signal that asks for a snapshot. */
#ifndef SONDE_SNAPSHOT_SIGNAL_H
#define SONDE_SNAPSHOT_SIGNAL_H

#include "format/format.h"

/* What the signal does now. */
enum {
    SONDE_SIGNAL_OURS,     /* it asks for a snapshot, or nobody has asked for that */
    SONDE_SIGNAL_IN_FRONT, /* the same; the program has installed a handler later, which is called next */
    SONDE_SIGNAL_REPLACED, /* it is handled by somebody else, who may or may not pass it on to us */
    SONDE_SIGNAL_IGNORED,
    SONDE_SIGNAL_DEFAULT, /* it ends the process, as the program wants it to */
};

/* From now on this signal raises `snapshot_asked` in the page, in addition to what it did before.
 * The page must stay mapped for good: a handler may be running in another thread. `interpreter` is
 * any function of Python's. Returns 0 or -errno. */
int sonde_signal_catch(int number, sonde_control *page, const void *interpreter);

/* Look whether the program has installed another handler, and go in front of it where that is safe:
 * if the handler is Python's, which never calls the one that was there before. Returns what the
 * signal does now. One thread at a time. */
int sonde_signal_renew(void);

/* Take no notice of the signal any more, but leave our handler there: the program is ending, and a
 * signal that comes now must not change how. */
void sonde_signal_rest(void);

/* Make the signal do again what it did before. */
void sonde_signal_release(void);

#endif
