/* sonde._sub: the part of the core for subinterpreters, in the same file as sonde._core. */
#include "events/events.h"

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec, PyTypeObject *base)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, (PyObject *)base);
    if (type != NULL && PyModule_AddType(module, (PyTypeObject *)type) < 0)
        Py_CLEAR(type);
    Py_XDECREF(type); /* the module has it */
    return (PyTypeObject *)type;
}

static int fill_module(PyObject *module)
{
    sonde_sub *sub = PyModule_GetState(module);
    if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "sonde._sub is for subinterpreters; the main one has sonde._core");
        return -1;
    }
    PyTypeObject *named = add_type(module, &sonde_sub_named, &PyBaseObject_Type);
    if (named == NULL || add_type(module, &sonde_sub_count, named) == NULL ||
        add_type(module, &sonde_sub_mark, named) == NULL ||
        (sub->region_type = add_type(module, &sonde_sub_region, named)) == NULL ||
        (sub->emit_type = add_type(module, &sonde_sub_emit, &PyBaseObject_Type)) == NULL)
        return -1;
    PyTypeObject *span = add_type(module, &sonde_sub_span, sub->region_type);
    if (span == NULL)
        return -1;
    sonde_sub_span_ready(span);
    return sonde_sub_begin(sub);
}

static void free_module(void *module)
{
    sonde_sub *sub = PyModule_GetState(module);
    if (sub == NULL)
        return;
    Py_CLEAR(sub->current);
    for (int i = 0; i < SONDE_SUB_TEXTS; i++)
        Py_CLEAR(sub->texts[i].str);
}

static PyMethodDef functions[] = {
    {"mark", (PyCFunction)(void (*)(void))sonde_sub_mark_now, METH_FASTCALL | METH_KEYWORDS,
     "mark(name, /, **attributes): mark this moment."},
    {"open_table", sonde_sub_open_table, METH_VARARGS,
     "open_table(schema, kinds, optional, timed): return what writes rows to this table of the process;\n"
     "None if there is none. ValueError says why its columns are not possible."},
    {"end_step", sonde_sub_end_step, METH_NOARGS, "Call sonde.step() in the main interpreter; return its result."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill_module},
#ifdef Py_MOD_PER_INTERPRETER_GIL_SUPPORTED
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "sonde._sub",
    .m_doc = "Events and rows of a subinterpreter.",
    .m_size = sizeof(sonde_sub),
    .m_methods = functions,
    .m_slots = slots,
    .m_free = free_module,
};

PyMODINIT_FUNC PyInit__sub(void);
PyMODINIT_FUNC PyInit__sub(void) { return PyModuleDef_Init(&definition); }
