/* The processor's counter as a clock. */
#include "calls/calls.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

int sonde_has_counter;

void sonde_ticks_init(void)
{
#ifdef __x86_64__
    /* An invariant counter has one speed, whatever the processor does to save power. */
    unsigned int a, b, c, d = 0;
    sonde_has_counter = __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1u << 8);
#else
    sonde_has_counter = 1;
#endif
}

sonde_rate sonde_ticks_rate(const sonde_moment *begin, const sonde_moment *now)
{
#ifdef __aarch64__
    (void)begin;
    (void)now;
    uint64_t per_second;
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(per_second));
    return (sonde_rate){1000000000, per_second};
#else
    /* Nothing says how fast the counter runs, so that is measured over the time since the start. */
    if (!sonde_has_counter || now->ticks <= begin->ticks)
        return (sonde_rate){1, 1};
    return (sonde_rate){(uint64_t)(now->ns - begin->ns), (uint64_t)(now->ticks - begin->ticks)};
#endif
}

int64_t sonde_ticks_to_ns(sonde_rate rate, int64_t ticks)
{
    return (int64_t)((unsigned __int128)ticks * rate.ns / rate.ticks);
}
