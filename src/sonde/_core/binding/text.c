/* Text: an intern table with a cache in front of it. */
#include "binding/binding.h"

enum { CACHE = 1024, CACHED_CHARS = 4096 };

typedef struct {
    PyObject_HEAD
    PyObject *map;
    sonde_intern_handle table;
    /* Keyed by the address of the str, which is kept alive here: an address
     * that was freed and used again would name the wrong text. */
    struct { PyObject *str; uint32_t id, seq; } cache[CACHE]; /* seq: without a GIL only; odd: being written */
} TextObject;

static PyObject *text_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *map;
    static char *names[] = {"map", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, &sonde_MapType, &map))
        return NULL;
    void *mem = sonde_map_memory(map, 1);
    if (mem == NULL)
        return NULL;
    sonde_intern_handle table;
    int status = sonde_intern_open(&table, mem, ((MapObject *)map)->bytes);
    if (status < 0)
        return sonde_raise(status, "intern table");
    TextObject *self = (TextObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->map = Py_NewRef(map);
    self->table = table;
    return (PyObject *)self;
}

static void text_dealloc(TextObject *self)
{
    for (int i = 0; i < CACHE; i++)
        Py_CLEAR(self->cache[i].str);
    Py_CLEAR(self->map);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

const sonde_intern_handle *sonde_text_table(PyObject *text) { return &((TextObject *)text)->table; }

int64_t sonde_text_put(const sonde_intern_handle *table, PyObject *str, enum sonde_text_share share)
{
    Py_ssize_t bytes_n;
    const char *bytes = PyUnicode_AsUTF8AndSize(str, &bytes_n);
    if (bytes != NULL)
        return bytes_n > UINT32_MAX ? 0 : sonde_intern_put_within(table, bytes, (uint32_t)bytes_n, share);
    /* Lone surrogates have no UTF-8 form; they are written as escapes, so nothing is lost. */
    PyErr_Clear();
    PyObject *spelled = PyUnicode_AsEncodedString(str, "utf-8", "backslashreplace");
    if (spelled == NULL)
        return -1;
    bytes_n = PyBytes_GET_SIZE(spelled);
    int64_t id = bytes_n > UINT32_MAX
                     ? 0
                     : sonde_intern_put_within(table, PyBytes_AS_STRING(spelled), (uint32_t)bytes_n, share);
    Py_DECREF(spelled);
    return id;
}

/* ---- the cache --------------------------------------------------------------------- */

#ifdef Py_GIL_DISABLED

/* Return the id of a str that is in the cache; 0: it is not. The str of a slot is only compared. */
static uint32_t find_cached(const TextObject *self, size_t at, const PyObject *str)
{
    /* Acquire: the number that says "complete" is read before what it vouches for. */
    uint32_t seq = sonde_load_acquire(&self->cache[at].seq);
    const PyObject *found = sonde_load_relaxed(&self->cache[at].str);
    uint32_t id = sonde_load_relaxed(&self->cache[at].id);
    /* What was read comes before the number is read again. */
    sonde_fence_acquire();
    return found == str && !(seq & 1) && sonde_load_relaxed(&self->cache[at].seq) == seq ? id : 0;
}

static void keep(TextObject *self, size_t at, PyObject *str, uint32_t id)
{
    uint32_t seq = sonde_load_relaxed(&self->cache[at].seq);
    if ((seq & 1) || !sonde_cas_acquire(&self->cache[at].seq, &seq, seq + 1))
        return; /* another thread is at it */
    /* The odd number is visible before any part of the change. */
    sonde_fence_release();
    PyObject *before = self->cache[at].str;
    sonde_store_relaxed(&self->cache[at].str, Py_NewRef(str));
    sonde_store_relaxed(&self->cache[at].id, id);
    /* Release: the pair is stored before the number that says it is complete. */
    sonde_store_release(&self->cache[at].seq, seq + 2);
    Py_XDECREF(before);
}

#else

static uint32_t find_cached(const TextObject *self, size_t at, const PyObject *str)
{
    return self->cache[at].str == str ? self->cache[at].id : 0;
}

static void keep(TextObject *self, size_t at, PyObject *str, uint32_t id)
{
    PyObject *before = self->cache[at].str;
    self->cache[at].str = Py_NewRef(str);
    self->cache[at].id = id;
    Py_XDECREF(before);
}

#endif

int64_t sonde_text_id(PyObject *text, PyObject *str)
{
    return sonde_text_id_within(text, str, SONDE_TEXTS_OURS);
}

int64_t sonde_text_id_within(PyObject *text, PyObject *str, enum sonde_text_share share)
{
    TextObject *self = (TextObject *)text;
    uintptr_t address = (uintptr_t)str;
    size_t at = (address >> 4 ^ address >> 14) % CACHE;
    uint32_t known = find_cached(self, at, str);
    if (known != 0)
        return known;
    if (!PyUnicode_Check(str)) {
        PyErr_Format(PyExc_TypeError, "expected text, not %.100s", Py_TYPE(str)->tp_name);
        return -1;
    }
    int64_t id = sonde_text_put(&self->table, str, share);
    if (id > 0 && PyUnicode_CheckExact(str) && PyUnicode_GET_LENGTH(str) <= CACHED_CHARS)
        keep(self, at, str, (uint32_t)id);
    return id;
}

static PyObject *text_put(PyObject *self, PyObject *str)
{
    int64_t id = sonde_text_id(self, str);
    return id < 0 ? NULL : PyLong_FromLongLong(id);
}

static PyMethodDef text_methods[] = {
    {"put", text_put, METH_O, "put(text): return the id of a str; 0 if the table is full."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject sonde_TextType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Text",
    .tp_basicsize = sizeof(TextObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Text(map): writes text into a mapped intern table.",
    .tp_new = text_new,
    .tp_dealloc = (destructor)text_dealloc,
    .tp_methods = text_methods,
};
