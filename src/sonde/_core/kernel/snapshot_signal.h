/* The signal that asks for a snapshot. */
#ifndef SONDE_SNAPSHOT_SIGNAL_H
#define SONDE_SNAPSHOT_SIGNAL_H

#include "format/format.h"

/* From now on this signal raises `snapshot_asked` in the page; whatever it did before, it still
 * does. The page must stay mapped for good: a handler may be running in another thread.
 * 0 or -errno. */
int sonde_signal_catch(int number, sonde_control *page);

/* Make the signal what it was. */
void sonde_signal_release(void);

#endif
