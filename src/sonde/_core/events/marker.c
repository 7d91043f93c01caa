/* Mark: moments that a program marks. */
#include "events/events.h"

#include <string.h>

static const char *const scopes[] = {"process", "global", "thread", "task", "marker"};

static const char *parse_scope(PyObject *word)
{
    for (size_t i = 0; i < sizeof scopes / sizeof *scopes; i++)
        if (PyUnicode_Check(word) && PyUnicode_CompareWithASCIIString(word, scopes[i]) == 0)
            return scopes[i];
    PyErr_Format(PyExc_ValueError,
                 "the scope of a marker is process, global, thread, task or marker, not %R", word);
    return NULL;
}

static void add_up(const sonde_marker_row *row)
{
    sonde_sum *sum = sonde_events_sum(SONDE_MARKER, row->domain, row->name);
    if (sum == NULL)
        return;
    sonde_sum_begin(sum);
    if (sum->count++ == 0)
        sum->first_ns = row->t_ns;
    sum->last_ns = row->t_ns;
    sonde_sum_end(sum);
}

static int record_in_turn(sonde_sub *sub, PyObject *domain, PyObject *name, const char *scope, PyObject *keys,
                          PyObject *const *values)
{
    if (!sonde_events_ready(sub))
        return 0;
    sonde_marker_row row = {
        .t_ns = sonde_clock_ns(),
        .name = sonde_events_text(sub, TO_MARKER, name),
        .domain = sonde_events_text(sub, TO_MARKER, domain),
        .scope = sonde_events_word(sub, scope),
        .id = sonde_events_take_number(sub),
        .parent = sonde_region_here(sub),
        .thread = sonde_find_tid(),
        .interpreter = sonde_sub_number(sub),
    };
    int is_held = sonde_subs_hold(sub);
    add_up(&row);
    sonde_subs_let(is_held);
    if (sonde_events_put(sub, TO_MARKER, &row,
                         (row.domain ? 0 : MARKER_DOMAIN) | (row.parent ? 0 : MARKER_PARENT)) < 0)
        return -1;
    if (keys != NULL && sonde_events_on())
        sonde_attributes_put(sub, row.id, row.t_ns, keys, values);
    if (sub != NULL || sonde_events.mirror == NULL)
        return 0;
    PyObject *value = PyUnicode_FromString(scope);
    int status = value == NULL ? -1
                              : sonde_events_mirror("mark", domain, name, SONDE_MARKER, row.id, value);
    Py_XDECREF(value);
    return status;
}

static int record(sonde_sub *sub, PyObject *domain, PyObject *name, const char *scope, PyObject *keys,
                  PyObject *const *values)
{
    int status;
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    sonde_sub_enter(sub, 1u << TO_MARKER | (keys != NULL) << TO_ATTRIBUTE);
    status = record_in_turn(sub, domain, name, scope, keys, values);
    sonde_sub_leave(sub);
    SONDE_EXCLUDE_END
    return status;
}

static PyObject *mark_now(sonde_sub *sub, PyObject *const *args, Py_ssize_t given, PyObject *kwnames)
{
    if (given != 1 || !PyUnicode_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "mark() takes a name, and attributes by keyword");
        return NULL;
    }
    if (record(sub, NULL, args[0], scopes[0], kwnames, args + 1) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *sonde_mark_now(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given,
                         PyObject *kwnames)
{
    return mark_now(NULL, args, given, kwnames);
}

PyObject *sonde_sub_mark_now(PyObject *module, PyObject *const *args, Py_ssize_t given, PyObject *kwnames)
{
    return mark_now(PyModule_GetState(module), args, given, kwnames);
}

static PyObject *mark_mark(PyObject *object, PyObject *const *args, Py_ssize_t given,
                           PyObject *kwnames)
{
    const sonde_named *self = (const sonde_named *)object;
    Py_ssize_t named = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    if (given + named > 1) {
        PyErr_SetString(PyExc_TypeError, "mark() takes one scope");
        return NULL;
    }
    const char *scope = given + named ? parse_scope(args[0]) : scopes[0];
    if (scope == NULL || record(self->sub, self->domain, self->name, scope, NULL, NULL) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *mark_repr(PyObject *object)
{
    return PyUnicode_FromFormat("<marker %R>", ((sonde_named *)object)->name);
}

static PyMethodDef mark_methods[] = {
    {"mark", (PyCFunction)(void (*)(void))mark_mark, METH_FASTCALL | METH_KEYWORDS,
     "mark(scope='process'): mark this moment; the scope is process, global, thread, task or marker."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject sonde_MarkType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Mark",
    .tp_basicsize = sizeof(sonde_named),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_doc = "Mark(name, domain=None): a marker that can be used again and again.",
    .tp_base = &sonde_NamedType,
    .tp_new = sonde_named_parse,
    .tp_repr = mark_repr,
    .tp_methods = mark_methods,
};

static PyType_Slot sub_slots[] = {
    {Py_tp_new, sonde_named_parse}, {Py_tp_repr, mark_repr}, {Py_tp_methods, mark_methods}, {0, NULL},
};

PyType_Spec sonde_sub_mark = {
    .name = "sonde._core.Mark",
    .basicsize = sizeof(sonde_named),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = sub_slots,
};
