/* The last sample before a signal ends the program, for Python. */
#include "binding/binding.h"
#include "kernel/code_range.h"
#include "kernel/fatal_signal.h"
#include "kernel/signal_stack.h"
#include "kernel/thread.h"

#include <string.h>
#include <unistd.h>

/* What the watch writes to. Once it is released, a handler that still runs in another thread may find
 * this unmapped; it would end the program a moment later anyway. */
static PyObject *kept_page, *kept_rows;

__attribute__((constructor)) static void keep_interpreter(void)
{
    sonde_keep_object((const void *)PyErr_SetInterrupt); /* as it is asked for below, and for the signal of snapshots */
}

/* In the main thread, now or at its next safe point: we may be in a thread of `sonde attach`. */
static int adapt_stack(void *Py_UNUSED(arg))
{
    if (kept_page != NULL)
        sonde_signal_stack_give();
    else
        sonde_signal_stack_take_back();
    return 0;
}

static void adapt_stack_soon(void)
{
    if (sonde_find_tid() == getpid())
        (void)adapt_stack(NULL);
    else
        (void)Py_AddPendingCall(adapt_stack, NULL); /* if there is no room, it stays as it is */
}

static PyObject *fatal_catch(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *writer, *text, *map;
    sonde_fatal_watch watch = {0};
    if (!PyArg_ParseTuple(args, "O!O!O!", &sonde_WriterType, &writer, &sonde_TextType, &text,
                          &sonde_MapType, &map))
        return NULL;
    watch.page = sonde_map_memory(map, 1);
    PyObject *rows = watch.page == NULL ? NULL : sonde_writer_ring(writer, SONDE_FATAL_KINDS, &watch.rows);
    if (rows == NULL)
        return NULL;
    const sonde_intern_handle *texts = sonde_text_table(text);
    for (int i = 0; i < SONDE_FATAL_SIGNALS; i++) {
        const char *name = sonde_fatal_names[i];
        watch.texts[i] = sonde_intern_put(texts, name, (uint32_t)strlen(name));
    }
    int others = sonde_fatal_catch(&watch, (const void *)PyErr_SetInterrupt);
    Py_XSETREF(kept_rows, rows);
    Py_XSETREF(kept_page, Py_NewRef(map));
    adapt_stack_soon();
    return PyLong_FromLong(others);
}

static PyObject *fatal_release(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    sonde_fatal_release();
    Py_CLEAR(kept_rows);
    Py_CLEAR(kept_page);
    adapt_stack_soon();
    Py_RETURN_NONE;
}

static PyObject *fatal_lost(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    uint32_t lost = sonde_fatal_lost();
    PyObject *names = PyList_New(0);
    for (int i = 0; names != NULL && i < SONDE_FATAL_SIGNALS; i++) {
        PyObject *name = lost & 1u << i ? PyUnicode_FromString(sonde_fatal_names[i]) : NULL;
        if (name != NULL && PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

PyMethodDef sonde_fatal_signal_methods[] = {
    {"fatal_catch", fatal_catch, METH_VARARGS,
     "fatal_catch(writer, text, page): have every thread sampled before a signal such as SIGSEGV ends\n"
     "the program. Returns how many signals the program handles itself; those are left alone."},
    {"fatal_lost", fatal_lost, METH_NOARGS,
     "Return the names of the signals that the program has handled itself since fatal_catch()."},
    {"fatal_release", fatal_release, METH_NOARGS,
     "Make the signals do again what they did before fatal_catch()."},
    {NULL, NULL, 0, NULL},
};
