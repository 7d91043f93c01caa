/* What Python calls to reach into another process. Everything here needs the GIL. */
#ifndef SONDE_ATTACH_H
#define SONDE_ATTACH_H

#include "binding/binding.h"

extern PyMethodDef sonde_visit_methods[], sonde_hold_threads_methods[],
    sonde_still_thread_methods[];

/* Return the names of the functions that a visitor calls, in order, as a new tuple; NULL with an
 * exception. */
PyObject *sonde_visit_calls(void);

#endif
