/* The event loops that run in other threads. From 3.14 on each thread keeps its own in its state,
 * at a place that no header of Python's says for sure; asyncio itself tells of the own thread only. */
#include "stacks/sampler.h"
#include "kernel/read_memory.h"

#include <string.h>

#define MOST_BYTES 4096 /* a thread's state is smaller */

/* Find the one word of this thread's state that holds `mark`. Returns its offset, 0 if there is
 * none or more than one. */
static size_t find_offset(const PyThreadState *state, PyObject *mark)
{
    size_t found = 0;
    uintptr_t word;
    for (size_t at = sizeof word; at < MOST_BYTES; at += sizeof word) {
        if (sonde_read_memory(&word, (uintptr_t)state + at, sizeof word) < 0)
            break; /* no memory here */
        if (word == (uintptr_t)mark && found)
            return 0;
        if (word == (uintptr_t)mark)
            found = at;
    }
    return found;
}

static PyObject *running_loops(PyObject *Py_UNUSED(module), PyObject *mark)
{
    static size_t offset; /* the same in all threads; guarded by the GIL */
#ifdef Py_GIL_DISABLED
    (void)mark;
    return PyList_New(0); /* threads may end while we look at them */
#endif
    PyThreadState *own = PyThreadState_Get();
    PyObject *list = PyList_New(0);
    if (offset == 0)
        offset = find_offset(own, mark);
    if (list == NULL || offset == 0)
        return list;
    /* A state leaves this list only with the GIL, which we keep. */
    PyThreadState *state = PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(own));
    for (; state != NULL; state = PyThreadState_Next(state)) {
        PyObject *loop;
        memcpy(&loop, (const char *)state + offset, sizeof loop);
        if (loop != NULL && loop != mark && PyList_Append(list, loop) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

PyMethodDef sonde_running_loops_methods[] = {
    {"running_loops", running_loops, METH_O,
     "running_loops(mark): return the event loops that run in other threads, from Python 3.14 on.\n"
     "`mark` has just been made the running loop of this thread: that shows where threads keep it."},
    {NULL, NULL, 0, NULL},
};
