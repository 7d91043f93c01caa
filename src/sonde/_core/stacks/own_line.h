/* The line of the program that this thread is at, read by the thread itself. */
#ifndef SONDE_OWN_LINE_H
#define SONDE_OWN_LINE_H

#include "stacks/frames.h" /* before all others: Python.h must be the first */

typedef struct {
    uint32_t func, file; /* text ids */
    int32_t line;
} sonde_own_line;

/* Find the innermost frame of this thread whose file does not lie in `folder`, which ends with a slash;
 * if all do, the innermost. Returns 0, or -1 if this thread runs no Python. With or without the GIL:
 * nobody else changes the frames of a thread while it is in a call. */
int sonde_own_line_find(sonde_own_line *found, const char *folder, const sonde_intern_handle *text);

#endif
