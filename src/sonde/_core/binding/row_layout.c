/* Where each column of a row lies. */
#include "binding/binding.h"

#include <string.h>

uint32_t sonde_kind_bytes(char kind)
{
    switch (kind) {
    case '?': case 'b': case 'B': return 1;
    case 'h': case 'H': return 2;
    case 'i': case 'I': case 't': return 4;
    case 'q': case 'Q': case 'd': return 8;
    default: return 0;
    }
}

int sonde_row_layout_make(sonde_row_layout *layout, const char *kinds, const char *optional)
{
    size_t columns = strlen(kinds);
    uint32_t at = 0;
    memset(layout, 0, sizeof *layout);
    if (columns == 0 || columns > SONDE_MAX_COLUMNS || strlen(optional) != columns) {
        PyErr_Format(PyExc_ValueError, "a row must have 1 to %u columns", SONDE_MAX_COLUMNS);
        return -1;
    }
    for (size_t i = 0; i < columns; i++) {
        uint32_t bytes = sonde_kind_bytes(kinds[i]);
        if (bytes == 0) {
            PyErr_Format(PyExc_ValueError, "there is no column kind '%c'", kinds[i]);
            return -1;
        }
        at = (at + bytes - 1) / bytes * bytes;
        layout->kind[i] = kinds[i];
        layout->offset[i] = (uint16_t)at;
        layout->null_bit[i] = optional[i] == '1' ? (int8_t)layout->optionals++ : -1;
        at += bytes;
    }
    if (layout->optionals > (int)SONDE_MAX_OPTIONAL) {
        PyErr_Format(PyExc_ValueError, "a row can have at most %u optional columns", SONDE_MAX_OPTIONAL);
        return -1;
    }
    layout->columns = (int)columns;
    layout->row_bytes = (at + 7) / 8 * 8;
    return 0;
}
