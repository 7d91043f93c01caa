/* Line tables: from the position of an instruction to its line. */
#include "format/format.h"

/* 3.10: pairs of (bytes of code, signed lines to add); -128 means no line. */
void sonde_lines_310(int32_t *lines, uint32_t units, const uint8_t *table, uint32_t bytes,
                     int32_t first_line)
{
    int32_t line = first_line;
    uint32_t unit = 0;
    for (uint32_t i = 0; i + 1 < bytes; i += 2) {
        int8_t delta = (int8_t)table[i + 1];
        if (delta != -128)
            line += delta;
        for (uint32_t end = unit + table[i] / 2; unit < end && unit < units; unit++)
            lines[unit] = delta == -128 ? -1 : line;
    }
    for (; unit < units; unit++)
        lines[unit] = line;
}

typedef struct {
    const uint8_t *bytes;
    uint32_t at, end;
} sonde_varints;

static uint32_t take_varint(sonde_varints *from)
{
    uint32_t value = 0, shift = 0;
    uint8_t byte = 64;
    while ((byte & 64) && from->at < from->end && shift < 32) {
        byte = from->bytes[from->at++];
        value |= (uint32_t)(byte & 63) << shift;
        shift += 6;
    }
    return value;
}

static int32_t take_signed(sonde_varints *from)
{
    uint32_t value = take_varint(from);
    return value & 1 ? -(int32_t)(value >> 1) : (int32_t)(value >> 1);
}

enum { ONE_LINE0 = 10, ONE_LINE2 = 12, NO_COLUMNS = 13, LONG = 14, NONE = 15 };

/* From 3.11 on: a byte with a kind and a length, then what the kind needs. */
void sonde_lines_311(int32_t *lines, uint32_t units, const uint8_t *table, uint32_t bytes,
                     int32_t first_line)
{
    sonde_varints from = {table, 0, bytes};
    /* Unsigned: damaged bytes may add up to anything. */
    uint32_t line = (uint32_t)first_line, unit = 0;
    while (from.at < from.end && unit < units) {
        uint8_t head = from.bytes[from.at++];
        uint32_t kind = head >> 3 & 15, end = unit + (head & 7) + 1;
        if (kind == LONG || kind == NO_COLUMNS)
            line += (uint32_t)take_signed(&from);
        if (kind == LONG) {
            for (int i = 0; i < 3; i++)
                (void)take_varint(&from);
        } else if (kind >= ONE_LINE0 && kind <= ONE_LINE2) {
            line += kind - ONE_LINE0;
            from.at += 2;
        } else if (kind < ONE_LINE0) {
            from.at += 1;
        }
        for (; unit < end && unit < units; unit++)
            lines[unit] = kind == NONE ? -1 : (int32_t)line;
    }
    for (; unit < units; unit++)
        lines[unit] = (int32_t)line;
}
