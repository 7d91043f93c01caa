/* The C function that the innermost frame of a stack is calling. */
#ifndef SONDE_C_CALL_H
#define SONDE_C_CALL_H

#include "stacks/frames.h"

/* Return the text id of its name, like `re.Pattern.match`, `time.sleep`, `list.__contains__`, `str.__add__`
 * (of a long text) or `raise`; 0 if it calls none, or none that can be told. `stack` was just read. Always 0 before Python 3.11. Native
 * thread only. */
uint32_t sonde_c_call_find(const sonde_stack *stack, const sonde_intern_handle *text);

#endif
