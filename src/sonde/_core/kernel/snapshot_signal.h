/* The signal that asks for a snapshot. */
#ifndef SONDE_SNAPSHOT_SIGNAL_H
#define SONDE_SNAPSHOT_SIGNAL_H

#include "format/format.h"

/* From now on this signal raises `snapshot_asked` in the page, in addition to what it did before.
 * The page must stay mapped for good: a handler may be running in another thread. Returns 0 or
 * -errno. */
int sonde_signal_catch(int number, sonde_control *page);

/* Make the signal do again what it did before. */
void sonde_signal_release(void);

#endif
