/* The smallest, the largest and the mean of numbers in memory, and how many are NaN.
 *
 * This is in C and reads memory directly, because an operation of the framework would be seen by
 * whatever watches its operations: modes, profilers, tracers. */
#include "variables/array_summary.h"

#include <math.h>
#include <string.h>

#define MOST_DIMENSIONS 16

typedef struct {
    const char *at;
    char kind;
    int dimensions;
    int64_t shape[MOST_DIMENSIONS], strides[MOST_DIMENSIONS]; /* in elements; strides in bytes */
    int64_t elements;
} numbers;

static double half(uint16_t bits)
{
    int exponent = bits >> 10 & 31;
    double fraction = bits & 1023, sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31)
        return fraction != 0 ? NAN : sign * INFINITY;
    return sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25));
}

static double bfloat(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

#define READ(type)                                                                                 \
    {                                                                                              \
        type value;                                                                                \
        memcpy(&value, at, sizeof value);                                                          \
        return (double)value;                                                                      \
    }

static double read_one(const char *at, char kind)
{
    uint16_t bits;
    switch (kind) {
    case 'f': READ(float)
    case 'd': READ(double)
    case 'q': READ(int64_t)
    case 'i': READ(int32_t)
    case 'h': READ(int16_t)
    case 'b': READ(int8_t)
    case 'Q': READ(uint64_t)
    case 'I': READ(uint32_t)
    case 'H': READ(uint16_t)
    case 'B': case '?': READ(uint8_t)
    case 'e': memcpy(&bits, at, sizeof bits); return half(bits);
    default: memcpy(&bits, at, sizeof bits); return bfloat(bits);
    }
}

static const char *place(const numbers *all, int64_t index)
{
    const char *at = all->at;
    for (int i = all->dimensions - 1; i >= 0; i--) {
        at += index % all->shape[i] * all->strides[i];
        index /= all->shape[i];
    }
    return at;
}

/* Read lengths and strides from two tuples. Returns 0, or -1 with an exception. */
static int read_shape(numbers *all, PyObject *shape, PyObject *strides)
{
    Py_ssize_t count = PyTuple_GET_SIZE(shape);
    if (count > MOST_DIMENSIONS || PyTuple_GET_SIZE(strides) != count) {
        PyErr_SetString(PyExc_ValueError, "expected a stride for each of at most 16 dimensions");
        return -1;
    }
    all->dimensions = (int)count;
    all->elements = 1;
    for (int i = 0; i < all->dimensions; i++) {
        all->shape[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i));
        all->strides[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, i));
        if (PyErr_Occurred())
            return -1;
        if (all->shape[i] < 0 ||
            __builtin_mul_overflow(all->elements, all->shape[i], &all->elements)) {
            PyErr_SetString(PyExc_ValueError, "the lengths are impossible");
            return -1;
        }
    }
    return 0;
}

static PyObject *summarize(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long address;
    int kind;
    PyObject *shape, *strides;
    long long most;
    if (!PyArg_ParseTuple(args, "KCO!O!L", &address, &kind, &PyTuple_Type, &shape, &PyTuple_Type,
                          &strides, &most))
        return NULL;
    numbers all = {.at = (const char *)(uintptr_t)address, .kind = (char)kind};
    if (read_shape(&all, shape, strides) < 0)
        return NULL;
    if (kind > 127 || !strchr("fdqihbQIHB?eE", kind) || address == 0 || most < 1)
        return PyErr_Format(PyExc_ValueError, "numbers of kind '%c' cannot be read", kind);
    int64_t step = (all.elements + most - 1) / most;
    /* The step is odd: otherwise it could stay in one column of a matrix. */
    if (step > 1)
        step |= 1;
    int64_t seen = 0, nans = 0;
    double low = INFINITY, high = -INFINITY, sum = 0;
    for (int64_t index = 0; index < all.elements; index += step, seen++) {
        double value = read_one(place(&all, index), all.kind);
        if (isnan(value)) {
            nans++;
            continue;
        }
        low = value < low ? value : low;
        high = value > high ? value : high;
        sum += value;
    }
    if (seen == nans)
        return Py_BuildValue("LLOOO", (long long)seen, (long long)nans, Py_None, Py_None, Py_None);
    return Py_BuildValue("LLddd", (long long)seen, (long long)nans, low, high,
                         sum / (double)(seen - nans));
}

PyMethodDef sonde_array_summary_methods[] = {
    {"summarize", summarize, METH_VARARGS,
     "summarize(address, kind, shape, strides, most): return (seen, nans, least, largest, mean) of at\n"
     "most `most` numbers, evenly spread, in memory that must belong to the caller; strides in bytes."},
    {NULL, NULL, 0, NULL},
};
