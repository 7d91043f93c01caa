/* The lock file of the host's one collector. */
#ifndef SONDE_COLLECTOR_LOCK_H
#define SONDE_COLLECTOR_LOCK_H

/* Is a collector wanted? A collector holds its lock file for as long as it lives; it writes into
 * the file when it begins and empties it when it ends in an orderly way. A collector that died
 * young left it full and fresh: then wait, or all the jobs of a host would start collectors that
 * die as fast as they come. */
int sonde_collector_is_wanted(const char *lock);

#endif
