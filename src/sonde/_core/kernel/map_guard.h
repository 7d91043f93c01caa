/* Mapped files that cannot end the process.
 *
 * Access to a mapped page that its file no longer has, or that the disk has no room for, raises SIGBUS.
 * For the mappings that are added here, such a page is replaced by an empty private one, and the program
 * goes on: what is written there is lost, and counted. Every other SIGBUS goes to whoever had it before. */
#ifndef SONDE_MAP_GUARD_H
#define SONDE_MAP_GUARD_H

#include <stddef.h>
#include <stdint.h>

/* Guard a mapping of a file from now on, or no longer (before it is unmapped). Any thread. */
void sonde_guard_add(void *mem, size_t bytes, int writable);
void sonde_guard_remove(const void *mem);

/* Come first again if the program has installed a handler of its own since; call it now and then. */
void sonde_guard_renew(void);

/* Does whoever had SIGBUS before us end the program? See fatal_signal.h. */
int sonde_guard_ends(void);

/* The pages that were replaced so far. */
uint64_t sonde_guard_lost(void);

#endif
