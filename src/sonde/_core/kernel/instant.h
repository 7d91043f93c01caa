/* How long something takes that takes less than a look at the clock.
 *
 * On aarch64, and on x86_64 where the kernel's own clock is the processor's counter, an instant is a reading
 * of that counter, which takes a fraction of what the clock takes. Elsewhere it is the clock. */
#ifndef SONDE_INSTANT_H
#define SONDE_INSTANT_H

#include "format/format.h"
#include "format/ordering.h"

typedef struct {
    int64_t at;
    uint64_t ns_per_tick; /* in units of 2^-32; 0: `at` is the clock's */
} sonde_instant;

/* Atomic; only instant.c changes it. */
extern __attribute__((visibility("hidden"))) uint64_t sonde_instant_rate;

/* Find out whether the counter can be trusted, unless that is known. `clocksource`: what the kernel's clock
 * counts by, as it says in /sys. Takes less than a millisecond. One thread at a time. */
void sonde_instant_begin(const char *clocksource);

/* Compare the counter with the clock, now and then; one that has gone wrong is never used again, as after the
 * machine has slept. One thread at a time. */
void sonde_instant_check(void);

static inline int64_t sonde_read_counter(void)
{
#if defined(__x86_64__)
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (int64_t)((uint64_t)high << 32 | low);
#else
    int64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks) : : "memory");
    return ticks;
#endif
}

static inline sonde_instant sonde_instant_now(void)
{
    uint64_t rate = sonde_load_relaxed(&sonde_instant_rate);
    return (sonde_instant){rate ? sonde_read_counter() : sonde_clock_ns(), rate};
}

/* The same, by what that earlier one was read from. */
static inline sonde_instant sonde_instant_after(sonde_instant before)
{
    return (sonde_instant){before.ns_per_tick ? sonde_read_counter() : sonde_clock_ns(), before.ns_per_tick};
}

/* Return the nanoseconds between two of them, of which the second was read after the first. */
static inline int64_t sonde_instant_apart(sonde_instant before, sonde_instant after)
{
    int64_t passed = after.at - before.at;
    if (passed < 0)
        return 0; /* read on two processors, a few ticks apart */
    if (before.ns_per_tick == 0)
        return passed;
    return (int64_t)((unsigned __int128)(uint64_t)passed * before.ns_per_tick >> 32);
}

/* Return how far apart the readings of two of them are that lie so many nanoseconds apart. */
static inline int64_t sonde_instant_length(sonde_instant of, uint32_t ns)
{
    return of.ns_per_tick ? (int64_t)(((uint64_t)ns << 32) / of.ns_per_tick) : (int64_t)ns;
}

#endif
