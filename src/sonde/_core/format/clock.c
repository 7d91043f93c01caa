/* The one clock of all our times. */
#define _POSIX_C_SOURCE 200809L
#include "format/format.h"

#include <time.h>

int64_t sonde_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
