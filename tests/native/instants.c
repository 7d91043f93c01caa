/* The processor's counter beside the clock, from two sides: prints what it is, and how often they disagree. */
#include "kernel/instant.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 160, SLOP_NS = 200 }; /* ns: what two readings one after the other may be apart, in the wrong order */

static void spend(int round)
{
    long us = 1L << round % 16; /* up to 33 ms */
    nanosleep(&(struct timespec){0, us * 1000}, NULL);
}

int main(int argc, char **argv)
{
    int wrong = 0;
    if (argc < 2)
        return 2;
    sonde_instant_begin(argv[1]);
    printf("%s\n", sonde_instant_rate ? "counter" : "clock");
    if (argc > 2) /* as if the counter had stood still while the machine slept */
        sonde_instant_rate = sonde_instant_rate * 2;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t outer_ns = sonde_clock_ns();
        sonde_instant begin = sonde_instant_now();
        int64_t inner_ns = sonde_clock_ns();
        spend(round);
        inner_ns = sonde_clock_ns() - inner_ns;
        int64_t took_ns = sonde_instant_apart(begin, sonde_instant_after(begin));
        outer_ns = sonde_clock_ns() - outer_ns;
        wrong += took_ns < inner_ns - inner_ns / 200 - SLOP_NS || took_ns > outer_ns + outer_ns / 200 + SLOP_NS;
        sonde_instant_check();
    }
    printf("%d %s\n", wrong, sonde_instant_rate ? "counter" : "clock");
    return 0;
}
