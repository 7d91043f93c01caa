/* Filters of system calls (seccomp), which may end whoever makes a call that they forbid. */
#ifndef SONDE_FILTER_H
#define SONDE_FILTER_H

/* Is there such a filter? */
int sonde_has_filter(void);

/* May this process read its own memory through the kernel? It is tried in a process of its own,
 * whose death says no. That takes a clone, which cannot be tried: whoever starts a collector makes
 * one anyway. */
int sonde_may_read_memory(void);

#endif
