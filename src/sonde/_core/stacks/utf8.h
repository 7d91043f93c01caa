/* Characters as UTF-8. */
#ifndef SONDE_UTF8_H
#define SONDE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* A name of a function or a file that is longer is cut, and ends with an ellipsis. */
#define SONDE_MOST_CHARS 2000

/* Write one character, at most four bytes. Returns how many. */
static inline size_t sonde_put_utf8(char *to, uint32_t c)
{
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        to[0] = (char)(0xc0 | c >> 6);
        to[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        to[0] = (char)(0xe0 | c >> 12);
        to[1] = (char)(0x80 | (c >> 6 & 63));
        to[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    to[0] = (char)(0xf0 | (c >> 18 & 7));
    to[1] = (char)(0x80 | (c >> 12 & 63));
    to[2] = (char)(0x80 | (c >> 6 & 63));
    to[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* Write a str of `length` characters, each of `kind` bytes. `to` has room for
 * 4 * SONDE_MOST_CHARS + 4 bytes. Returns how many were written. */
static inline size_t sonde_put_str(char *to, const char *from, size_t kind, size_t length)
{
    size_t chars = length > SONDE_MOST_CHARS ? SONDE_MOST_CHARS : length, used = 0;
    for (size_t i = 0; i < chars; i++) {
        uint32_t c = 0;
        __builtin_memcpy(&c, from + i * kind, kind);
        used += sonde_put_utf8(to + used, c);
    }
    return chars < length ? used + sonde_put_utf8(to + used, 0x2026) : used;
}

#endif
