/* What the native tests share: random numbers, and requirements that end the program with one
 * line. */
#ifndef SONDE_REQUIRE_H
#define SONDE_REQUIRE_H

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

/* _exit: the other threads stop at once, and a child does not print anything twice. */
#define REQUIRE(holds, ...)                                 \
    do {                                                    \
        if (!(holds)) {                                     \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
            fprintf(stderr, __VA_ARGS__);                   \
            fputc('\n', stderr);                            \
            _exit(1);                                       \
        }                                                   \
    } while (0)

/* Return the next random number of a seed (splitmix64). */
static inline uint64_t draw(uint64_t *state)
{
    uint64_t mixed = *state += 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
    return mixed ^ mixed >> 31;
}

#endif
