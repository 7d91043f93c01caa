/* Named: a name and a domain, which regions, counters and markers have in common. */
#include "events/events.h"

PyObject *sonde_named_new(PyTypeObject *type, PyObject *name, PyObject *domain)
{
    if (domain != Py_None && !PyUnicode_Check(domain)) {
        PyErr_SetString(PyExc_TypeError, "the name of a domain must be text");
        return NULL;
    }
    sonde_named *self = (sonde_named *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->sub = sonde_sub_of(type);
    sonde_name_prepare(name);
    sonde_name_prepare(domain);
    self->name = Py_NewRef(name);
    self->domain = domain == Py_None ? NULL : Py_NewRef(domain);
    return (PyObject *)self;
}

PyObject *sonde_named_parse(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *name, *domain = Py_None;
    static char *names[] = {"name", "domain", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "U|O", names, &name, &domain))
        return NULL;
    return sonde_named_new(type, name, domain);
}

void sonde_named_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    int is_sub = ((sonde_named *)object)->sub != NULL;
    type->tp_free(object);
    if (is_sub)
        Py_DECREF(type); /* in the main interpreter, types of ours are static */
}

static void named_dealloc(PyObject *object)
{
    Py_CLEAR(((sonde_named *)object)->name);
    Py_CLEAR(((sonde_named *)object)->domain);
    sonde_named_free(object);
}

static PyObject *get_name(PyObject *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(((sonde_named *)self)->name);
}

static PyObject *get_domain(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *domain = ((sonde_named *)self)->domain;
    return Py_NewRef(domain == NULL ? Py_None : domain);
}

static PyGetSetDef named_getset[] = {
    {"name", get_name, NULL, NULL, NULL},
    {"domain", get_domain, NULL, "The name of the domain, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject sonde_NamedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Named",
    .tp_basicsize = sizeof(sonde_named),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "What regions, counters and markers have in common.",
    .tp_dealloc = named_dealloc,
    .tp_getset = named_getset,
};

static PyType_Slot sub_slots[] = {{Py_tp_dealloc, named_dealloc}, {Py_tp_getset, named_getset}, {0, NULL}};

PyType_Spec sonde_sub_named = {
    .name = "sonde._core.Named",
    .basicsize = sizeof(sonde_named),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = sub_slots,
};
