/* Filters of system calls (seccomp), which may end whoever makes a call that they forbid.
 *
 * Such a call can only be tried in a process of its own, whose death says no. That takes a clone,
 * which cannot be tried: whoever starts a collector makes one anyway. */
#ifndef SONDE_FILTER_H
#define SONDE_FILTER_H

#include <stdint.h>

/* Is there such a filter? */
int sonde_has_filter(void);

/* Is one known? It costs nothing. */
int sonde_had_filter(void);

/* Begin to watch for filters that come later, in the thread that records. Call it again before
 * anything that takes more than memory, with the GIL. Returns whether one has come: what it forbids
 * is not known, and cannot be tried, because it may forbid to start a process. */
int sonde_filter_watch(void);

/* Watch no longer; with the GIL, after the thread that records has ended. */
void sonde_filter_unwatch(void);

/* Has one come? Any thread; it takes one pread(), some microseconds. */
int sonde_has_later_filter(void);

/* The same, but an answer that is no older than `age_ns` will do. Before a call that a filter may forbid,
 * SONDE_NOW_NS: whoever looked only once a turn was ended by one that came after the look. */
#define SONDE_NOW_NS 50000
int sonde_has_later_filter_within(int64_t age_ns);

/* Has one been seen? It costs nothing. */
int sonde_had_later_filter(void);

/* May this process call process_vm_readv()? It is tried. */
int sonde_may_call_readv(void);

/* Try whether a filter that is there lets us ask what kind of file a descriptor is. */
void sonde_filter_try_files(void);

/* May we ask that? Yes where there is no filter; otherwise if it was tried. It costs nothing. */
int sonde_may_ask_about_files(void);

/* The name of a call that recording cannot do without and that a filter answers with death; NULL if
 * there is none, or if this process is too large to try it. Tried once, when recording begins. */
const char *sonde_find_deadly_call(void);

#endif
