/* The local variables of a frame, without making the frame keep them. */
#include "stacks/frame_layout.h"
#include "stacks/sampler.h"

#if SONDE_HAS_FRAMES && PY_VERSION_HEX < 0x030d0000

/* Append (name, value), unless there is no value; of a cell, append what it holds. */
static int append(PyObject *list, PyObject *name, PyObject *value)
{
    if (value != NULL && PyCell_Check(value))
        value = PyCell_GET(value);
    if (value == NULL)
        return 0;
    PyObject *pair = PyTuple_Pack(2, name, value);
    int status = pair == NULL ? -1 : PyList_Append(list, pair);
    Py_XDECREF(pair);
    return status;
}

#if PY_VERSION_HEX >= 0x030b0000

static int append_all(PyObject *list, PyFrameObject *frame, PyCodeObject *code)
{
    for (int i = 0; i < code->co_nlocalsplus; i++)
        if (append(list, PyTuple_GET_ITEM(code->co_localsplusnames, i),
                   frame->f_frame->localsplus[i]) < 0)
            return -1;
    return 0;
}

#else

static int append_all(PyObject *list, PyFrameObject *frame, PyCodeObject *code)
{
    PyObject *names[] = {code->co_varnames, code->co_cellvars, code->co_freevars};
    Py_ssize_t at = 0;
    for (int part = 0; part < 3; part++)
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names[part]); i++, at++)
            if (append(list, PyTuple_GET_ITEM(names[part], i), frame->f_localsplus[at]) < 0)
                return -1;
    return 0;
}

#endif

static PyObject *frame_locals(PyObject *Py_UNUSED(module), PyObject *frame)
{
    if (!PyFrame_Check(frame)) {
        PyErr_SetString(PyExc_TypeError, "expected a frame");
        return NULL;
    }
    PyCodeObject *code = PyFrame_GetCode((PyFrameObject *)frame);
    PyObject *list = PyList_New(0);
    /* A frame without fast locals (a class body) has only the mapping. */
    int status = list == NULL ? -1
                 : code->co_flags & CO_OPTIMIZED ? append_all(list, (PyFrameObject *)frame, code)
                                                 : 0;
    Py_DECREF(code);
    if (status < 0)
        Py_CLEAR(list);
    return list;
}

#else

/* From 3.13 on f_locals is a view of the frame. */
static PyObject *frame_locals(PyObject *Py_UNUSED(module), PyObject *frame)
{
    PyObject *view = PyObject_GetAttrString(frame, "f_locals");
    PyObject *items = view == NULL ? NULL : PyMapping_Items(view);
    Py_XDECREF(view);
    return items;
}

#endif

PyMethodDef sonde_locals_methods[] = {
    {"frame_locals", frame_locals, METH_O, "frame_locals(frame): return [(name, value), …] as they are now."},
    {NULL, NULL, 0, NULL},
};
