/* Checks that find torn and damaged bytes. */
#include "sonde_core.h"

#include <string.h>

/* Odd, so that multiplying loses nothing: two different states stay different. */
#define SONDE_MIX 0x9E3779B97F4A7C15u

static uint64_t mix(uint64_t state, uint64_t word)
{
    state = (state ^ word) * SONDE_MIX;
    return state ^ (state >> 29);
}

static uint32_t fold(uint64_t state)
{
    state *= SONDE_MIX;
    return (uint32_t)(state >> 32) ^ (uint32_t)state;
}

uint32_t sonde_check(uint64_t seed, const uint64_t *words, size_t words_n)
{
    uint64_t state = mix(words_n, seed);
    for (size_t i = 0; i < words_n; i++)
        state = mix(state, words[i]);
    /* Never 0: a blank slot must not vouch for a blank row. */
    uint32_t check = fold(state);
    return check ? check : 1;
}

uint32_t sonde_check_bytes(const void *bytes, size_t bytes_n)
{
    const unsigned char *from = bytes;
    uint64_t state = mix(SONDE_MIX, bytes_n);
    uint64_t word;
    for (; bytes_n >= sizeof word; bytes_n -= sizeof word, from += sizeof word) {
        memcpy(&word, from, sizeof word);
        state = mix(state, word);
    }
    word = 0;
    memcpy(&word, from, bytes_n);
    uint32_t check = fold(mix(state, word));
    return check ? check : 1;
}
