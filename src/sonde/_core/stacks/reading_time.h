/* How long reading a stack may take, by how long it usually takes on this machine. */
#ifndef SONDE_READING_TIME_H
#define SONDE_READING_TIME_H

#include <stdint.h>

/* Say whether the thread that is read next stands still until it has been read: then that may take long. Only the
 * native thread calls these. */
void sonde_reading_stands(int is_still);

/* Return how long reading the top of a stack may take. */
int64_t sonde_reading_top_limit(int is_strict);

/* Say how long a reading of the top took that was not strict. */
void sonde_reading_top_took(int64_t took_ns);

/* Return how long it may take until what lies below the top has been read as well; `more_ns` is what its
 * size may add. `took_ns` is how long this reading took; it counts for later ones if it was not strict. */
int64_t sonde_reading_rest_limit(int is_strict, int64_t took_ns, int64_t more_ns);

#endif
