/* From Python values to the bytes of a row. In a header, so that the compiler sees through the calls:
 * this is most of what `emit` costs. */
#ifndef SONDE_ROW_VALUES_H
#define SONDE_ROW_VALUES_H

#include "binding/binding.h"

#include <string.h>

static int put_signed(PyObject *value, void *to, int64_t low, int64_t high, uint32_t bytes)
{
    int64_t number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred())
        return -1;
    if (number < low || number > high) {
        PyErr_SetString(PyExc_OverflowError, "the number does not fit");
        return -1;
    }
    /* Little endian, which module.c demands: the low bytes come first. */
    memcpy(to, &number, bytes);
    return 0;
}

static int put_unsigned(PyObject *value, void *to, uint64_t high, uint32_t bytes)
{
    uint64_t number;
    if (PyLong_CheckExact(value)) {
        number = PyLong_AsUnsignedLongLong(value);
    } else {
        PyObject *index = PyNumber_Index(value);
        if (index == NULL)
            return -1;
        number = PyLong_AsUnsignedLongLong(index);
        Py_DECREF(index);
    }
    if (number == (uint64_t)-1 && PyErr_Occurred())
        return -1;
    if (number > high) {
        PyErr_SetString(PyExc_OverflowError, "the number does not fit");
        return -1;
    }
    memcpy(to, &number, bytes);
    return 0;
}

static int put_float(PyObject *value, void *to)
{
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred())
        return -1;
    memcpy(to, &number, sizeof number);
    return 0;
}

static int put_bool(PyObject *value, char *to)
{
    /* Truth values only: "no" is true in Python, and None is a missing value. */
    const char *type = Py_TYPE(value)->tp_name;
    if (!PyBool_Check(value) && strcmp(type, "numpy.bool_") && strcmp(type, "numpy.bool")) {
        PyErr_Format(PyExc_TypeError, "bool expected, not %.100s", type);
        return -1;
    }
    int truth = PyObject_IsTrue(value);
    *to = (char)(truth == 1);
    return truth < 0 ? -1 : 0;
}

/* The row being written. It holds references to what it needs: a value's own __index__ or
 * __float__ may run any code, even code that stops the recording. */
typedef struct {
    sonde_ring_handle ring;
    PyObject *ring_map, *text;
    enum sonde_text_share share;
    uint32_t nulls;
    uint64_t words[SONDE_MAX_ROW_BYTES / 8];
} sonde_row;

static int put_text(const sonde_row_layout *layout, sonde_row *row, int column, PyObject *value,
                    void *to)
{
    int64_t id = sonde_text_id_within(row->text, value, row->share);
    if (id < 0)
        return -1;
    if (id == 0) {
        /* Full: NULL in the row (id 0 reads as NULL in any text column), and counted. */
        sonde_add_relaxed(&row->ring.shared->text_lost, 1);
        if (layout->null_bit[column] >= 0)
            row->nulls |= 1u << layout->null_bit[column];
    }
    uint32_t small = (uint32_t)id;
    memcpy(to, &small, sizeof small);
    return 0;
}

static int put_value(const sonde_row_layout *layout, sonde_row *row, int column, PyObject *value)
{
    char *to = (char *)row->words + layout->offset[column];
    if (value == Py_None && layout->null_bit[column] >= 0) {
        row->nulls |= 1u << layout->null_bit[column];
        return 0;
    }
    switch (layout->kind[column]) {
    case 'q': return put_signed(value, to, INT64_MIN, INT64_MAX, 8);
    case 'd': return put_float(value, to);
    case 't': return put_text(layout, row, column, value, to);
    case 'i': return put_signed(value, to, INT32_MIN, INT32_MAX, 4);
    case 'h': return put_signed(value, to, INT16_MIN, INT16_MAX, 2);
    case 'b': return put_signed(value, to, INT8_MIN, INT8_MAX, 1);
    case 'Q': return put_unsigned(value, to, UINT64_MAX, 8);
    case 'I': return put_unsigned(value, to, UINT32_MAX, 4);
    case 'H': return put_unsigned(value, to, UINT16_MAX, 2);
    case 'B': return put_unsigned(value, to, UINT8_MAX, 1);
    default: return put_bool(value, to);
    }
}

/* Put all values of a row; `timed` is 1 if the first column is filled in from the clock. */
static inline int put_values(const sonde_row_layout *layout, sonde_row *row, int timed, PyObject *const *args,
                             Py_ssize_t given, PyObject *kwnames)
{
    if (given != layout->columns - timed || kwnames != NULL) {
        PyErr_Format(PyExc_TypeError, "%d values in order expected, %zd given", layout->columns - timed, given);
        return -1;
    }
    for (int i = 0; i < given; i++)
        if (put_value(layout, row, timed + i, args[i]) < 0)
            return -1;
    if (timed)
        row->words[0] = (uint64_t)sonde_clock_ns();
    return 0;
}

#endif
