/* Filters of system calls (seccomp), which may end whoever makes a call that they forbid.
 *
 * Such a call can only be tried in a process of its own, whose death says no. That takes a clone,
 * which cannot be tried: whoever starts a collector makes one anyway. */
#ifndef SONDE_FILTER_H
#define SONDE_FILTER_H

/* Is there such a filter? */
int sonde_has_filter(void);

/* What sonde_has_filter() said last; it costs nothing. */
int sonde_had_filter(void);

/* Has this thread got its first filter since sonde_has_filter() was last called? It costs one short
 * system call. */
int sonde_has_new_filter(void);

/* May this process read its own memory through the kernel? It is tried. */
int sonde_may_read_memory(void);

/* The name of a call that recording cannot do without and that a filter answers with death; NULL if
 * there is none, or if this process is too large to try it. Tried once for each number of filters:
 * they can be added, but not removed. Without a filter it costs one short system call. */
const char *sonde_find_deadly_call(void);

#endif
