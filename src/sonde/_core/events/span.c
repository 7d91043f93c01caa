/* Region and Span as Python sees them. */
#include "events/region.h"

#include <string.h>
#include <structmember.h>

/* ---- Python's side --------------------------------------------------------------- */

static PyObject *region_start(PyObject *self, PyObject *Py_UNUSED(none))
{
    if (sonde_region_begin((RegionObject *)self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *region_stop(PyObject *self, PyObject *Py_UNUSED(none))
{
    if (sonde_region_end((RegionObject *)self, NULL) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *region_enter(PyObject *self, PyObject *Py_UNUSED(none))
{
    return sonde_region_begin((RegionObject *)self) < 0 ? NULL : Py_NewRef(self);
}

static PyObject *region_exit(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    PyObject *error = NULL;
    if (given > 0 && args[0] != Py_None && PyType_Check(args[0])) {
        error = PyObject_GetAttrString(args[0], "__name__");
        if (error == NULL)
            PyErr_Clear();
    }
    int status = sonde_region_end((RegionObject *)self, error);
    Py_XDECREF(error);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *region_set(PyObject *object, PyObject *const *args, Py_ssize_t given,
                            PyObject *kwnames)
{
    RegionObject *self = (RegionObject *)object;
    if (given != 0) {
        PyErr_SetString(PyExc_TypeError, "set() takes attributes: set(rows=3)");
        return NULL;
    }
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    const activation *now = sonde_region_find(self);
    sonde_sub_enter(self->sub, (unsigned)(kwnames != NULL) << TO_ATTRIBUTE);
    if (kwnames != NULL && sonde_region_is_seen(now) && sonde_events_on())
        sonde_attributes_put(self->sub, now->id, sonde_clock_ns(), kwnames, args);
    sonde_sub_leave(self->sub);
    SONDE_EXCLUDE_END
    Py_RETURN_NONE;
}

/* Return the number of the activation that would end now; 0: it has none in this recording. */
static int64_t find_id(const RegionObject *self)
{
    int64_t id;
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    const activation *now = sonde_region_find(self);
    id = sonde_region_is_seen(now) ? now->id : 0;
    SONDE_EXCLUDE_END
    return id;
}

static PyObject *region_under(PyObject *object, PyObject *parent)
{
    RegionObject *self = (RegionObject *)object;
    if (PyObject_TypeCheck(parent, self->sub == NULL ? &sonde_RegionType : self->sub->region_type)) {
        self->under = find_id((RegionObject *)parent);
    } else if (parent == Py_None) {
        self->under = 0;
    } else {
        self->under = PyLong_AsLongLong(parent);
        if (self->under == -1 && PyErr_Occurred())
            return NULL;
    }
    return Py_NewRef(object);
}

static PyObject *decorate(PyObject *self, PyObject *function)
{
    PyObject *module = PyImport_ImportModule("sonde.job.events");
    if (module == NULL)
        return NULL;
    PyObject *result = PyObject_CallMethod(module, "decorate", "OO", self, function);
    Py_DECREF(module);
    return result;
}

/* region(function) decorates the function; the other two cases are what a `with` does: see Bound. */
static PyObject *region_call(PyObject *self, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames)
{
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    if (kwnames == NULL && given == 0)
        return region_enter(self, NULL);
    if (kwnames == NULL && given == 3)
        return region_exit(self, args, given);
    if (kwnames == NULL && given == 1)
        return decorate(self, args[0]);
    PyErr_SetString(PyExc_TypeError, "a region can decorate one function");
    return NULL;
}

/* ---- Bound: what stands in place of __enter__ and __exit__ --------------------------------
 *
 * A `with` asks the class for both and binds them, which makes two objects: half of the cost of
 * an empty region. When asked through an object, this returns the object itself, which knows by
 * the number of arguments what it is called for. */

typedef struct {
    PyObject_HEAD
    PyObject *plain; /* the method, for those who ask the class itself */
} BoundObject;

static PyObject *bound_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    return Py_NewRef(object == NULL || object == Py_None ? ((BoundObject *)self)->plain : object);
}

static void bound_dealloc(PyObject *self)
{
    Py_CLEAR(((BoundObject *)self)->plain);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject bound_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Bound",
    .tp_basicsize = sizeof(BoundObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = bound_dealloc,
    .tp_descr_get = bound_get,
};

static int bind(const char *name)
{
    BoundObject *bound = (BoundObject *)bound_type.tp_alloc(&bound_type, 0);
    if (bound == NULL)
        return -1;
    PyObject *methods = sonde_RegionType.tp_dict;
    bound->plain = Py_XNewRef(PyDict_GetItemString(methods, name));
    int status = bound->plain == NULL ? -1 : PyDict_SetItemString(methods, name, (PyObject *)bound);
    Py_DECREF(bound);
    return status;
}

int sonde_region_ready(PyObject *core)
{
    static int is_bound;
    if (PyType_Ready(&bound_type) < 0 || PyModule_AddType(core, &sonde_RegionType) < 0)
        return -1;
    if (!is_bound && (bind("__enter__") < 0 || bind("__exit__") < 0))
        return -1;
    is_bound = 1;
    PyType_Modified(&sonde_RegionType);
    return PyModule_AddType(core, &sonde_SpanType);
}

static PyObject *get_id(PyObject *self, void *Py_UNUSED(closure))
{
    int64_t id = find_id((RegionObject *)self);
    if (id == 0)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(id);
}

static PyObject *get_kind(PyObject *self, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(sonde_kind_names[((RegionObject *)self)->kind]);
}

static int parse_kind(const char *word)
{
    for (int kind = 0; kind <= SONDE_EVENT; kind++)
        if (strcmp(word, sonde_kind_names[kind]) == 0)
            return kind;
    PyErr_Format(PyExc_ValueError, "the kind of a region is span, task, frame or event, not %.20s", word);
    return -1;
}

static PyObject *region_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *name, *domain = Py_None;
    const char *word = "span";
    static char *names[] = {"name", "domain", "kind", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "U|Os", names, &name, &domain, &word))
        return NULL;
    int kind = parse_kind(word);
    if (kind < 0)
        return NULL;
    RegionObject *self = (RegionObject *)sonde_named_new(type, name, domain);
    if (self == NULL)
        return NULL;
    self->call = region_call;
    self->kind = (uint32_t)kind;
    return (PyObject *)self;
}

/* Keep attributes as two tuples of plain values, so that no object of the program lives longer. */
static int keep_attributes(RegionObject *self, PyObject *keys, PyObject *const *values)
{
    Py_ssize_t n = PyTuple_GET_SIZE(keys);
    self->values = PyTuple_New(n);
    if (self->values == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *plain = sonde_attribute_plain(values[i]);
        if (plain == NULL)
            return -1;
        PyTuple_SET_ITEM(self->values, i, plain);
    }
    self->keys = Py_NewRef(keys);
    return 0;
}

/* Spans come and go one after the other: a few are kept for the next ones, as good as new apart
 * from their reference counts. Not without a GIL, where threads would have to take turns for them. */
#ifdef Py_GIL_DISABLED
enum { SPARE = 0 };
#else
enum { SPARE = 16 };
#endif
static RegionObject *spare[SPARE + 1];
static int spare_n;

static RegionObject *alloc_span(PyTypeObject *type)
{
    RegionObject *self;
    if (type != &sonde_SpanType || spare_n == 0) {
        self = (RegionObject *)type->tp_alloc(type, 0);
        if (self != NULL) {
            self->call = region_call;
            self->sub = sonde_sub_of(type);
        }
        return self;
    }
    self = spare[--spare_n];
    _Py_NewReference((PyObject *)self); /* tells tracemalloc, too */
    return self;
}

static int keep_spare(RegionObject *self)
{
    if (!Py_IS_TYPE(self, &sonde_SpanType) || spare_n >= SPARE)
        return 0;
    self->under = 0;
    self->unseen = 0;
    spare[spare_n++] = self;
    return 1;
}

static PyObject *span_make(PyObject *type, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 1 || !PyUnicode_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "span() takes a name, and attributes by keyword");
        return NULL;
    }
    RegionObject *self = alloc_span((PyTypeObject *)type);
    if (self == NULL)
        return NULL;
    sonde_name_prepare(args[0]);
    self->name = Py_NewRef(args[0]);
    if (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0 &&
        keep_attributes(self, kwnames, args + 1) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *span_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *name;
    if (!PyArg_ParseTuple(args, "U:span", &name))
        return NULL;
    RegionObject *self = (RegionObject *)sonde_named_new(type, name, Py_None);
    if (self == NULL)
        return NULL;
    self->call = region_call;
    if (kwargs == NULL || PyDict_GET_SIZE(kwargs) == 0)
        return (PyObject *)self;
    PyObject *keys = PySequence_Tuple(kwargs);
    PyObject *values = keys == NULL ? NULL : PyDict_Values(kwargs);
    if (values == NULL || keep_attributes(self, keys, ((PyListObject *)values)->ob_item) < 0)
        Py_CLEAR(self);
    Py_XDECREF(keys);
    Py_XDECREF(values);
    return (PyObject *)self;
}

static void region_dealloc(PyObject *object)
{
    RegionObject *self = (RegionObject *)object;
    if (self->top != NULL)
        sonde_region_lose(self);
    Py_CLEAR(self->name);
    Py_CLEAR(self->domain);
    Py_CLEAR(self->keys);
    Py_CLEAR(self->values);
    if (!keep_spare(self))
        sonde_named_free(object);
}

static PyObject *region_repr(PyObject *object)
{
    RegionObject *self = (RegionObject *)object;
    return PyUnicode_FromFormat("<%s %R>", sonde_kind_names[self->kind], self->name);
}

static PyMethodDef region_methods[] = {
    {"start", region_start, METH_NOARGS, "Begin the region; it may be begun again before it ends."},
    {"stop", region_stop, METH_NOARGS, "End the region: the innermost one of this task or thread."},
    {"__enter__", region_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))region_exit, METH_FASTCALL, NULL},
    {"set", (PyCFunction)(void (*)(void))region_set, METH_FASTCALL | METH_KEYWORDS,
     "set(**attributes): add attributes to the region that is open."},
    {"under", region_under, METH_O,
     "under(region): make this region (or the one with this id) the parent, wherever it runs; returns\n"
     "itself."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef region_getset[] = {
    {"id", get_id, NULL, "The number of the innermost open activation; None if none is recorded.", NULL},
    {"kind", get_kind, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject sonde_RegionType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Region",
    .tp_basicsize = sizeof(RegionObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_base = &sonde_NamedType,
    .tp_vectorcall_offset = offsetof(RegionObject, call),
    .tp_doc = "Region(name, domain=None, kind='span'): a stretch of the program.",
    .tp_new = region_new,
    .tp_dealloc = region_dealloc,
    .tp_repr = region_repr,
    .tp_call = PyVectorcall_Call,
    .tp_methods = region_methods,
    .tp_getset = region_getset,
};

PyTypeObject sonde_SpanType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde.span",
    .tp_basicsize = sizeof(RegionObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(RegionObject, call),
    .tp_call = PyVectorcall_Call,
    .tp_doc = "span(name, /, **attributes): a stretch of the program.\n\n"
              "    with sonde.span('load', shard=3): …\n    @sonde.span('evaluate')\n"
              "    span.start(); …; span.stop()",
    .tp_base = &sonde_RegionType,
    .tp_new = span_new,
    .tp_vectorcall = span_make,
};

/* ---- in a subinterpreter --------------------------------------------------------------- */

static PyMemberDef sub_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(RegionObject, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot sub_region_slots[] = {
    {Py_tp_new, region_new},         {Py_tp_dealloc, region_dealloc}, {Py_tp_repr, region_repr},
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_methods, region_methods}, {Py_tp_getset, region_getset},
    {Py_tp_members, sub_members},    {0, NULL},
};

PyType_Spec sonde_sub_region = {
    .name = "sonde._core.Region",
    .basicsize = sizeof(RegionObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = sub_region_slots,
};

static PyType_Slot sub_span_slots[] = {
    {Py_tp_new, span_new}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, sub_members}, {0, NULL},
};

PyType_Spec sonde_sub_span = {
    .name = "sonde.span",
    .basicsize = sizeof(RegionObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = sub_span_slots,
};

void sonde_sub_span_ready(PyTypeObject *type) { type->tp_vectorcall = span_make; }
