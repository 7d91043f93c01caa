/* Checksums that find torn and damaged bytes. */
#include "format/format.h"

#include <string.h>

/* Odd, so that multiplication loses nothing: two different states stay different. */
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

/* SONDE_MIX to the power of 1, 2, 3 …, modulo 2^64; all of them odd. */
const uint64_t sonde_check_keys[SONDE_MAX_COLUMNS + 1] = {
    0x9E3779B97F4A7C15u, 0xDF442D22CE4859B9u, 0x604A5CE3ADDEF82Du,
    0xD94363FC538227B1u, 0x2E2B795F2D10FD85u, 0x4BE7956E30A337E9u,
    0x5ECB31E4CCD2721Du, 0x06D4B2611BEB6861u, 0x0F10CD6A9BE88BF5u,
    0x80E0DCF76DB02719u, 0x779023CF069D510Du, 0x4114E3439EEBF211u,
    0x8FC15A19BA851765u, 0x50687085A271D749u, 0x82FE791BE9B804FDu,
    0xF53F7DFF42A4F4C1u, 0xC1712BCBDCDF8FD5u, 0x204DB59CA693F879u,
    0xE1A216043077FDEDu, 0x07DDE4BF1258A071u, 0x657DF06EDEA5E545u,
    0xFB5E617F1F9B3AA9u, 0xB39AFCD693FFABDDu, 0x761AF3294C1A2521u,
    0x3737591302AB07B5u, 0xA6A140EA15154DD9u, 0xA09B3202342E7ECDu,
    0x590DD8F2277DB2D1u, 0x3710DF127F56E725u, 0xF0F4B4B9B5C8E209u,
    0x196A94FE0490E6BDu, 0xCDFB8AFC05487981u, 0xBBF1BBAEA8167395u,
    0x477AAC3FFDE5A739u, 0xF4323BC3AE5053ADu, 0x66E0293C3820A931u,
    0x66B667E9A3CB9D05u, 0x2685E2DEEE344D69u, 0x7B6DF7115723359Du,
    0x707345DC963D71E1u, 0xA22921B8A03D5375u, 0x7D788C7104468499u,
    0xAF359F12BD3CFC8Du, 0x7C7B3C0304170391u, 0xD68C186F728786E5u,
    0xF3420C33A3A6FCC9u, 0xA5C7D76F183E187Du, 0x1030134928168E41u,
    0xCAD2517B948B2755u, 0x668C1D40200965F9u, 0xBA93C4062F23F96Du,
    0x8A8D513F774641F1u, 0x192E4D296F5E24C5u, 0xD122FB29187A7029u,
    0x0CD9C1E413390F5Du, 0x48B84D57CB014EA1u, 0xBA5E1E43E2BB6F35u,
    0x58E24E0AD38FCB59u, 0x4E99271FF004CA4Du, 0x7C710644AFA3E451u,
    0x470D23E2F972F6A5u, 0x98ED40464C982789u, 0x3BFD4577603B9A3Du,
    0x66C0333B9C3B3301u, 0x5D6BEFB3BAD9AB15u,
};

uint32_t sonde_check(uint64_t seed, const uint64_t *words, size_t words_n)
{
    uint64_t state = sonde_check_begin(seed);
    for (size_t i = 0; i < words_n; i++)
        state = sonde_check_word(state, (uint32_t)i, words[i]);
    return sonde_check_end(state);
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
