/* Functions and their names, as cProfile gives them. */
#include "calls/calls.h"

#include <stdlib.h>

sonde_call_state sonde_calls = {.publish_at = INT64_MAX};

static size_t hash_function(const void *item)
{
    return sonde_hash(((const sonde_function *)item)->key, NULL);
}

static size_t hash_label(const void *item)
{
    const sonde_function *function = item;
    /* These are exact strings: their hash runs no code and cannot fail. */
    Py_hash_t name = PyObject_Hash(function->name), file = PyObject_Hash(function->file);
    return sonde_hash((const void *)(name ^ function->lineno), (const void *)file);
}

sonde_function *sonde_function_get(const void *key)
{
    const sonde_set *set = &sonde_calls.functions;
    for (size_t at = sonde_hash(key, NULL); set->size != 0; at++) {
        sonde_function *function = set->slots[at & (set->size - 1)];
        if (function == NULL || function->key == key)
            return function;
    }
    return NULL;
}

void sonde_function_free(void *item)
{
    sonde_function *function = item;
    Py_XDECREF(function->code);
    Py_XDECREF(function->name);
    Py_XDECREF(function->file);
    free(function);
}

/* ---- names ------------------------------------------------------------------------ */

/* Find the method of a type that a bound builtin was made from. It gives the name `<method
 * 'append' of 'list' objects>`, also where the list is of a subclass. */
static PyObject *find_descriptor(PyTypeObject *type, const PyMethodDef *method)
{
    PyObject *mro = type->tp_mro;
    for (Py_ssize_t i = 0; mro != NULL && i < PyTuple_GET_SIZE(mro); i++) {
        PyObject *base = PyTuple_GET_ITEM(mro, i);
#if PY_VERSION_HEX >= 0x030C0000
        PyObject *dict = PyType_GetDict((PyTypeObject *)base);
#else
        PyObject *dict = Py_XNewRef(((PyTypeObject *)base)->tp_dict);
#endif
        PyObject *found = dict == NULL ? NULL : PyDict_GetItemString(dict, method->ml_name);
        Py_XDECREF(dict);
        if (found != NULL && Py_IS_TYPE(found, &PyMethodDescr_Type) &&
            ((PyMethodDescrObject *)found)->d_method == method)
            return found;
    }
    return NULL;
}

static PyObject *name_builtin(PyObject *builtin)
{
    if (Py_IS_TYPE(builtin, &PyMethodDescr_Type))
        return PyObject_Repr(builtin);
    const PyCFunctionObject *function = (PyCFunctionObject *)builtin;
    const char *name = function->m_ml->ml_name;
    PyObject *module = function->m_module;
    int is_named = module != NULL && PyUnicode_Check(module);
    if (function->m_self == NULL) {
        if (is_named && PyUnicode_CompareWithASCIIString(module, "builtins") != 0)
            return PyUnicode_FromFormat("<%U.%s>", module, name);
        return PyUnicode_FromFormat("<%s>", name);
    }
    PyObject *method = find_descriptor(Py_TYPE(function->m_self), function->m_ml);
    if (method != NULL)
        return PyObject_Repr(method);
    if (is_named)
        return PyUnicode_FromFormat("<built-in method %U.%s>", module, name);
    return PyUnicode_FromFormat("<built-in method %s>", name);
}

/* Give functions with the same label different names: the second is `name #2`. So no number is
 * lost. */
static int set_apart(sonde_function *function)
{
    const sonde_set *set = &sonde_calls.labels;
    for (size_t at = hash_label(function); set->size != 0; at++) {
        sonde_function *first = set->slots[at & (set->size - 1)];
        if (first == NULL)
            break;
        if (first->lineno == function->lineno && PyUnicode_Compare(first->file, function->file) == 0 &&
            PyUnicode_Compare(first->name, function->name) == 0) {
            PyObject *name = PyUnicode_FromFormat("%U #%u", function->name, ++first->copies);
            if (name == NULL)
                return -1;
            Py_SETREF(function->name, name);
            return 0;
        }
    }
    function->copies = 1;
    return sonde_set_add(&sonde_calls.labels, hash_label, function);
}

static int set_label(sonde_function *function, const sonde_callee *callee)
{
    if (callee->code != NULL) {
        PyCodeObject *code = (PyCodeObject *)callee->code;
        /* A subclass of str could run code in its hash; this makes a plain str of it. */
        function->name = PyUnicode_FromObject(code->co_name);
        function->file = PyUnicode_FromObject(code->co_filename);
        function->lineno = code->co_firstlineno > 0 ? code->co_firstlineno : 0;
        function->is_coroutine = (code->co_flags & CO_COROUTINE) != 0;
        function->code = Py_NewRef(callee->code);
    } else {
        function->name = callee->builtin == NULL ? PyUnicode_FromString("<more functions>")
                                                 : name_builtin(callee->builtin);
        function->file = PyUnicode_FromString("~");
    }
    return function->name == NULL || function->file == NULL || set_apart(function) < 0 ? -1 : 0;
}

/* ---- making ------------------------------------------------------------------------- */

static sonde_function *make_function(const sonde_callee *callee)
{
    sonde_function *function = calloc(1, sizeof *function);
    if (function == NULL)
        return NULL;
    function->key = callee->key;
    if (set_label(function, callee) == 0)
        return function;
    PyErr_Clear();
    sonde_function_free(function);
    return NULL;
}

/* Return the function that stands for all further ones. A program that makes code without end
 * would fill the memory; so beyond a limit, all new functions count as one. */
static sonde_function *find_crowd(void)
{
    static const sonde_callee crowd = {.key = &crowd};
    if (sonde_calls.crowd == NULL)
        sonde_calls.crowd = make_function(&crowd);
    return sonde_calls.crowd;
}

sonde_function *sonde_function_find(const sonde_callee *callee)
{
    sonde_function *function = sonde_function_get(callee->key);
    if (function != NULL)
        return function;
    if (sonde_calls.functions.used >= SONDE_MAX_FUNCTIONS)
        return find_crowd();
    if (sonde_set_reserve(&sonde_calls.functions, hash_function) < 0)
        return NULL;
    function = make_function(callee);
    if (function != NULL)
        (void)sonde_set_add(&sonde_calls.functions, hash_function, function);
    return function;
}
