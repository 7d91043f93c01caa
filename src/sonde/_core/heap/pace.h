/* How many bytes lie between two samples of the heap. */
#ifndef SONDE_PACE_H
#define SONDE_PACE_H

#include <stdint.h>

/* Begin, with one sample in so many bytes on average; or, if this is 0, with as many samples as take a small
 * share of the time. Seeds the lot. */
void sonde_pace_begin(int64_t every_bytes, int64_t now_ns);

/* No more samples; also in a forked child. */
void sonde_pace_end(void);

/* Return the bytes between two samples, on average; 0: nothing is sampled. Any thread. */
int64_t sonde_pace_every(void);

/* Return the number of bytes until the next sample. Any thread. */
int64_t sonde_pace_draw(void);

/* Return a random number between 0 and 1, neither of which it is. Any thread. */
double sonde_pace_part(void);

/* A sample was taken, which took so long. Returns 1 if the pace has changed: then all counters have to be drawn anew, which
 * changes nothing else, because it never matters how long one has waited for a drop of rain. One
 * thread at a time. */
int sonde_pace_count(int64_t now_ns, int64_t own_ns);

#endif
