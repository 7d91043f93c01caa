/* Who starts the host's collector, and when. */
#ifndef SONDE_COLLECTOR_LOCK_H
#define SONDE_COLLECTOR_LOCK_H

/* Is there no collector, and is it our turn to start one? If so, the start is noted for the other
 * jobs of the host. `lock` is the path of the collector's lock file, which ends in ".lock".
 * Returns 1 or 0. Any thread, without the GIL; it never waits. */
int sonde_collector_claim(const char *lock);

#endif
