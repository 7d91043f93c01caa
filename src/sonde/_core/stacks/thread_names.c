/* The names of threads: see thread_names.h. */
#include "stacks/thread_names.h"

#include <stdlib.h>

static int compare(const void *one, const void *other)
{
    uint32_t a = ((const sonde_thread_name *)one)->tid, b = ((const sonde_thread_name *)other)->tid;
    return (a > b) - (a < b);
}

/* Returns how many were put into `found`, or -1 with an exception. */
static Py_ssize_t fill(sonde_thread_name *found, PyObject *names, PyObject *text)
{
    PyObject *key, *name;
    Py_ssize_t n = 0;
    for (Py_ssize_t at = 0; PyDict_Next(names, &at, &key, &name);) {
        unsigned long tid = PyLong_AsUnsignedLong(key);
        int64_t id = PyErr_Occurred() ? -1 : PyUnicode_Check(name) ? sonde_text_id(text, name) : 0;
        if (id < 0)
            return -1;
        if (id > 0)
            found[n++] = (sonde_thread_name){(uint32_t)tid, (uint32_t)id};
    }
    return n;
}

sonde_thread_name *sonde_thread_names_make(PyObject *names, PyObject *text, Py_ssize_t *n)
{
    sonde_thread_name *found = PyMem_Calloc((size_t)PyDict_GET_SIZE(names) + 1, sizeof *found);
    if (found == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *n = fill(found, names, text);
    if (*n < 0) {
        PyMem_Free(found);
        return NULL;
    }
    qsort(found, (size_t)*n, sizeof *found, compare);
    return found;
}

void sonde_thread_names_give(sonde_sampler *sampler, const sonde_thread_name *names, Py_ssize_t n)
{
    for (uint32_t i = 0; i < sampler->threads.count; i++) {
        sonde_sampled_thread *thread = sampler->threads.list[i];
        sonde_thread_name key = {thread->tid, 0};
        const sonde_thread_name *one = bsearch(&key, names, (size_t)n, sizeof key, compare);
        if (one != NULL)
            sonde_sampler_name(sampler, thread, one->name);
    }
}
