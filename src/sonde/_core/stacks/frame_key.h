/* Frames that were read as Python objects, as keys of the table of stacks. */
#ifndef SONDE_FRAME_KEY_H
#define SONDE_FRAME_KEY_H

#include "stacks/threads.h" /* before all others: Python.h must be the first */

/* Fill `keys`, which has room for SONDE_MAX_DEPTH, from a list of (func, file, line, first line), whose
 * texts go into `text`. Returns their number, or -1 with an exception. Needs the GIL. */
int sonde_frame_keys_make(PyObject *text, PyObject *frames, sonde_frame_key *keys);

#endif
