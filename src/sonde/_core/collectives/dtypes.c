/* The types of numbers that torch knows, by the numbers it gives them. */
#include "collectives/collectives.h"

#include <string.h>

static const struct {
    const char *in_cpp, *in_python;
    uint32_t bytes;
} dtypes[] = {
    {"Byte", "uint8", 1},           {"Char", "int8", 1},          {"Short", "int16", 2},
    {"Int", "int32", 4},            {"Long", "int64", 8},         {"Half", "float16", 2},
    {"Float", "float32", 4},        {"Double", "float64", 8},     {"ComplexHalf", "complex32", 4},
    {"ComplexFloat", "complex64", 8}, {"ComplexDouble", "complex128", 16}, {"Bool", "bool", 1},
    {"QInt8", "qint8", 1},          {"QUInt8", "quint8", 1},      {"QInt32", "qint32", 4},
    {"BFloat16", "bfloat16", 2},    {"QUInt4x2", "quint4x2", 1},  {"QUInt2x4", "quint2x4", 1},
    {"Bits1x8", "bits1x8", 1},      {"Bits2x4", "bits2x4", 1},    {"Bits4x2", "bits4x2", 1},
    {"Bits8", "bits8", 1},          {"Bits16", "bits16", 2},      {"Float8_e5m2", "float8_e5m2", 1},
    {"Float8_e4m3fn", "float8_e4m3fn", 1}, {"Float8_e5m2fnuz", "float8_e5m2fnuz", 1},
    {"Float8_e4m3fnuz", "float8_e4m3fnuz", 1}, {"UInt16", "uint16", 2}, {"UInt32", "uint32", 4},
    {"UInt64", "uint64", 8},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

int sonde_dtype_find(const char *name, size_t bytes)
{
    for (int i = 0; i < DTYPES; i++)
        if (strlen(dtypes[i].in_cpp) == bytes && memcmp(dtypes[i].in_cpp, name, bytes) == 0)
            return i;
    return -1;
}

const char *sonde_dtype_name(int dtype)
{
    return dtype >= 0 && dtype < DTYPES ? dtypes[dtype].in_python : NULL;
}

uint32_t sonde_dtype_bytes(int dtype)
{
    return dtype >= 0 && dtype < DTYPES ? dtypes[dtype].bytes : 0;
}
