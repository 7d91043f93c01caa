/* Loops that do nothing but ask: see busy_loop.c. */
#ifndef SONDE_BUSY_LOOP_H
#define SONDE_BUSY_LOOP_H

#include <stdint.h>

#define SONDE_BUSY_AHEAD 96 /* code units behind an instruction in which the end of such a loop is looked for */

/* Tell whether the instruction at `unit` is part of a loop that only asks. `units` are the `count` code units
 * of the function from its start. Returns 1 or 0. Any thread. */
int sonde_busy_loop(const uint16_t *units, int32_t count, int32_t unit);

#endif
