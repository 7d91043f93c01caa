/* The processor's counter beside the clock: see instant.h. */
#define _GNU_SOURCE 1
#include "kernel/instant.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

uint64_t sonde_instant_rate;

#if defined(__x86_64__)

enum { TRIES = 5, FIRST_NS = 100000, NEXT_NS = 500000000, MOST_APART = 1000 /* ticks: 0.2 to 0.5 µs */ };

/* The counter and the clock at the same time. */
typedef struct {
    int64_t ticks, ns;
} reading;

static reading first;
static int is_judged;

/* Returns 0, or -1 if this thread lost its processor each time. */
static int read_both(reading *both)
{
    int64_t best = MOST_APART;
    for (int i = 0; i < TRIES; i++) {
        int64_t before = sonde_read_counter(), ns = sonde_clock_ns(), apart = sonde_read_counter() - before;
        if (apart >= 0 && apart < best) {
            best = apart;
            *both = (reading){before + apart / 2, ns};
        }
    }
    return best < MOST_APART ? 0 : -1;
}

static uint64_t find_rate(reading from, reading to)
{
    if (to.ticks <= from.ticks || to.ns <= from.ns)
        return 0;
    return (uint64_t)(((unsigned __int128)(uint64_t)(to.ns - from.ns) << 32) / (uint64_t)(to.ticks - from.ticks));
}

/* Does the counter keep its pace, whatever the processor does? */
static int is_invariant(void)
{
    enum { POWER = 0x80000007, INVARIANT = 1 << 8 };
    uint32_t a, b, c, d;
    return __get_cpuid(POWER, &a, &b, &c, &d) && (d & INVARIANT) != 0;
}

void sonde_instant_begin(const char *clocksource)
{
    if (is_judged)
        return;
    is_judged = 1;
    reading next;
    if (strcmp(clocksource, "tsc") != 0 || !is_invariant() || read_both(&first) < 0)
        return;
    while (sonde_clock_ns() - first.ns < FIRST_NS)
        ;
    if (read_both(&next) == 0)
        sonde_store_relaxed(&sonde_instant_rate, find_rate(first, next));
}

void sonde_instant_check(void)
{
    reading now;
    uint64_t rate = sonde_instant_rate;
    if (rate == 0 || sonde_clock_ns() - first.ns < NEXT_NS || read_both(&now) < 0)
        return;
    uint64_t next = find_rate(first, now), apart = next > rate ? next - rate : rate - next;
    first = now;
    sonde_store_relaxed(&sonde_instant_rate, apart > rate / 100 ? 0 : next);
}

#else

void sonde_instant_begin(const char *clocksource)
{
    (void)clocksource;
    uint64_t per_s;
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(per_s));
    if (per_s > 0)
        sonde_store_relaxed(&sonde_instant_rate, (1000000000ull << 32) / per_s);
}

void sonde_instant_check(void) {}

#endif
