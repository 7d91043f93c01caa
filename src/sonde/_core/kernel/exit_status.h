/* The status that the program ends with, kept in memory that outlives the process. */
#ifndef SONDE_EXIT_STATUS_H
#define SONDE_EXIT_STATUS_H

#include <stdint.h>

/* From now on write 1 + the status of this process to `word` when it ends through exit(); NULL: no
 * longer. The word must stay mapped until then. Forked children write nothing. One call at a time. */
void sonde_exit_watch(uint32_t *word);

/* Write the status now: the process is about to end without exit(). Any thread. */
void sonde_exit_tell(int status);

#endif
