/* Functions that align their stack, as those for wide vector registers do: with room of unknown size besides, gcc
 * keeps where the caller's stack ends in memory, and the unwind tables say so. */
#include <stdint.h>
#include <string.h>

/* Work until it is done, in a function that is aligned; what it returns depends on all of it. */
static __attribute__((noinline)) uint64_t sonde_test_inner(uint64_t turns, uint64_t bytes)
{
    __attribute__((aligned(64))) volatile uint64_t wide[8] = {1};
    volatile unsigned char room[bytes];
    memset((void *)room, 1, bytes);
    for (uint64_t i = 0; i < turns; i++)
        wide[i % 8] += wide[(i + 1) % 8] + room[i % bytes];
    return wide[0];
}

/* Its own frame is found from the stack pointer alone, which has to be the right one. */
__attribute__((noinline)) uint64_t sonde_test_outer(uint64_t turns, uint64_t bytes)
{
    volatile uint64_t kept[9] = {turns};
    kept[1] = sonde_test_inner(turns, bytes);
    return kept[0] + kept[1];
}
