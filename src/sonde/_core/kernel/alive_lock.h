/* The lock that proves that a job is alive. */
#ifndef SONDE_ALIVE_LOCK_H
#define SONDE_ALIVE_LOCK_H

/* Lock the file at `path`, which is made if need be; one at a time. Returns 1; 0 if its file
 * system has no locks; or -errno. */
int sonde_alive_hold(const char *path);

/* Release the lock. Returns 1 if it was held. */
int sonde_alive_release(void);

/* Does any process hold the lock of this file? Returns 1, 0 or -errno. */
int sonde_alive_probe(const char *path);

#endif
