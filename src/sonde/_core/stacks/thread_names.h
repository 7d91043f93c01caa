/* The names of threads, which only Python knows. */
#ifndef SONDE_THREAD_NAMES_H
#define SONDE_THREAD_NAMES_H

#include "stacks/sampler.h"

typedef struct {
    uint32_t tid, name; /* the kernel's id of the thread; a text id */
} sonde_thread_name;

/* Make a list of the names in a dict, by thread ids; PyMem_Free() it. NULL with an exception. */
sonde_thread_name *sonde_thread_names_make(PyObject *names, PyObject *text, Py_ssize_t *n);

/* Give the threads of a sampler their names. The caller makes sure that sonde_sampler_turn() is not
 * running. */
void sonde_thread_names_give(sonde_sampler *sampler, const sonde_thread_name *names, Py_ssize_t n);

#endif
