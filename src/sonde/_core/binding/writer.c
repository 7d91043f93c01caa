/* Writer: from Python arguments to a row in one C call. */
#include "binding/binding.h"
#include "binding/row_values.h"
#include "kernel/fork.h"
#include "kernel/sub_lock.h"

#include <string.h>

static const uint32_t always_off = 0;
static const uint32_t always_on = 1;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    const uint32_t *on; /* in the control page; `always_off` while detached */
    sonde_ring_handle ring;        /* `shared` is NULL while detached */
    PyObject *text;                /* Text, or NULL while detached */
    PyObject *ring_map, *page_map; /* keep the memory above mapped */
    PyObject *opener;              /* called at the first row to attach us; or NULL */
    int timed;                     /* the first column is filled in from the clock */
    int strict;                    /* raise instead of counting */
    int is_guest;                  /* a table of the program: its texts leave room for ours */
    sonde_lent_ring *lent;         /* a copy of all this for subinterpreters; or NULL */
    uint32_t forks;                /* sonde_forks when `on` and `ring` were set */
    sonde_row_layout layout;
} WriterObject;

static sonde_exclusion opening = SONDE_EXCLUSION; /* of `child_opener` */
/* In a forked child whose recording has not begun: what begins it. */
SONDE_CHANGED_IN_CHILD static PyObject *child_opener;

static void forget_in_child(void) { child_opener = NULL; }

SONDE_IN_CHILD(forget_in_child)

void sonde_writers_wait(PyObject *opener) { child_opener = Py_NewRef(opener); }

/* The ring; NULL while there is none, or if it is a parent's. Nothing is written to a writer at a
 * fork: each would be one more page that a child, which may exec at once, has to copy. */
static inline sonde_ring *find_ring(const WriterObject *self)
{
    return self->forks == sonde_forks ? sonde_load_relaxed(&self->ring.shared) : NULL;
}

static inline uint32_t is_on(const WriterObject *self)
{
    if (self->forks == sonde_forks)
        return sonde_load_relaxed(self->on);
    /* A row of the program begins the recording of a child. */
    return child_opener != NULL && self->is_guest && (self->text != NULL || self->opener != NULL);
}

int sonde_writer_count(PyObject *writer, uint64_t *rows, uint64_t *capacity)
{
    const WriterObject *self = (WriterObject *)writer;
    int status = -1;
    SONDE_EXCLUDE_BEGIN(writer)
    const sonde_ring *shared = find_ring(self);
    if (shared != NULL && is_on(self)) {
        *rows = sonde_load_relaxed(&shared->head) - sonde_load_relaxed(&shared->dropped);
        *capacity = self->ring.capacity;
        status = 0;
    }
    SONDE_EXCLUDE_END
    return status;
}

/* A value that does not fit is counted in the job and raised in the tool; but an exception that
 * is not ours to catch, such as a Ctrl-C inside a value's __float__, is always raised. */
static int is_misfit(const WriterObject *self, const sonde_ring_handle *ring)
{
    if (self->strict || !PyErr_ExceptionMatches(PyExc_Exception))
        return 0;
    PyErr_Clear();
    sonde_add_relaxed(&ring->shared->misfit, 1);
    return 1;
}

/* At the first row of a table: have its ring made. 0, or -1 with an exception.
 * Other threads that come meanwhile call the opener too, and wait in it for the first. */
static int call_opener(PyObject *opener)
{
    if (opener == NULL)
        return 0;
    PyObject *result = PyObject_CallNoArgs(opener);
    Py_DECREF(opener);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int open_ring(WriterObject *self)
{
    PyObject *opener;
    SONDE_EXCLUDE_BEGIN(&opening)
    opener = Py_XNewRef(child_opener);
    SONDE_EXCLUDE_END
    int status = call_opener(opener);
    SONDE_EXCLUDE_BEGIN(&opening)
    opener = child_opener; /* dropped only now: see above about other threads */
    child_opener = NULL;
    SONDE_EXCLUDE_END
    Py_XDECREF(opener);
    if (status < 0)
        return -1;
    SONDE_EXCLUDE_BEGIN(self)
    opener = find_ring(self) == NULL ? Py_XNewRef(self->opener) : NULL;
    SONDE_EXCLUDE_END
    return call_opener(opener);
}

int sonde_writer_open(PyObject *writer)
{
    WriterObject *self = (WriterObject *)writer;
    return find_ring(self) == NULL ? open_ring(self) : 0;
}

int sonde_writer_put(PyObject *writer, const void *row, uint32_t nulls)
{
    WriterObject *self = (WriterObject *)writer;
    if (find_ring(self) == NULL && open_ring(self) < 0)
        return -1;
    SONDE_EXCLUDE_BEGIN(self)
    if (find_ring(self) != NULL)
        (void)sonde_ring_append(&self->ring, row, nulls); /* a drop is counted there */
    SONDE_EXCLUDE_END
    return 0;
}

int sonde_writer_append(PyObject *writer, const void *row, uint32_t nulls)
{
    uint32_t is_wanted;
    SONDE_EXCLUDE_BEGIN(writer)
    is_wanted = is_on((WriterObject *)writer);
    SONDE_EXCLUDE_END
    return is_wanted ? sonde_writer_put(writer, row, nulls) : 0;
}

void sonde_writer_lose_text(PyObject *writer)
{
    SONDE_EXCLUDE_BEGIN(writer)
    sonde_ring *shared = find_ring((WriterObject *)writer);
    if (shared != NULL)
        sonde_add_relaxed(&shared->text_lost, 1);
    SONDE_EXCLUDE_END
}

int sonde_writer_is(PyObject *writer, const char *kinds)
{
    const WriterObject *self = (WriterObject *)writer;
    size_t columns = strlen(kinds);
    if (columns == (size_t)self->layout.columns && !memcmp(kinds, self->layout.kind, columns))
        return 0;
    PyErr_Format(PyExc_ValueError, "rows of kinds %s expected", kinds);
    return -1;
}

/* Get hold of the ring for one row. Returns 1; 0 if nothing is to be written now; -1 if there is no
 * ring yet. */
static inline int take_ring(WriterObject *self, sonde_row *row)
{
    int is_ready;
    SONDE_EXCLUDE_BEGIN(self)
    is_ready = !is_on(self) ? 0 : find_ring(self) == NULL ? -1 : 1;
    if (is_ready > 0) {
        row->ring = self->ring;
        row->ring_map = Py_NewRef(self->ring_map);
        row->text = Py_NewRef(self->text);
    }
    SONDE_EXCLUDE_END
    return is_ready;
}

static PyObject *writer_call(PyObject *callable, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames)
{
    WriterObject *self = (WriterObject *)callable;
    sonde_row row;
    int is_ready = take_ring(self, &row);
    if (is_ready < 0 && open_ring(self) < 0)
        return NULL;
    if (is_ready == 0 || (is_ready < 0 && take_ring(self, &row) <= 0))
        Py_RETURN_NONE;
    row.share = self->is_guest ? SONDE_TEXTS_VALUES : SONDE_TEXTS_OURS;
    row.nulls = 0;
    for (uint32_t i = 0; i < self->layout.row_bytes / 8; i++)
        row.words[i] = 0;
    int status = put_values(&self->layout, &row, self->timed, args, PyVectorcall_NARGS(nargsf), kwnames);
    if (status == 0)
        (void)sonde_ring_append(&row.ring, row.words, row.nulls); /* a drop is counted there */
    else if (is_misfit(self, &row.ring))
        status = 0;
    Py_DECREF(row.text);
    Py_DECREF(row.ring_map);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    const char *kinds, *optional;
    int timed = 0, strict = 0, is_guest = 0;
    static char *names[] = {"kinds", "optional", "timed", "strict", "guest", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ss|ppp", names, &kinds, &optional, &timed,
                                     &strict, &is_guest))
        return NULL;
    sonde_row_layout layout;
    if (sonde_row_layout_make(&layout, kinds, optional) < 0)
        return NULL;
    if (timed && kinds[0] != 'q') {
        PyErr_SetString(PyExc_ValueError, "a timed row starts with an i64 column");
        return NULL;
    }
    WriterObject *self = (WriterObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = writer_call;
    self->on = &always_off;
    self->timed = timed;
    self->strict = strict;
    self->is_guest = is_guest;
    self->forks = sonde_forks;
    self->layout = layout;
    return (PyObject *)self;
}

/* Tell subinterpreters what this writer writes to now. */
static void tell_subs(const WriterObject *self)
{
    if (self->lent == NULL)
        return;
    sonde_lent_ring now = {.on = self->on, .is_due = self->opener != NULL, .forks = self->forks};
    if (self->ring.shared != NULL) {
        now.ring = self->ring;
        now.text = *sonde_text_table(self->text);
    }
    sonde_sub_lock();
    *self->lent = now;
    sonde_sub_unlock();
}

/* Give up the ring. The references are dropped by the caller: that may run anything. */
static void writer_release(WriterObject *self, PyObject *old[4])
{
    old[0] = self->text;
    old[1] = self->ring_map;
    old[2] = self->page_map;
    old[3] = self->opener;
    self->on = &always_off;
    sonde_store_relaxed(&self->ring.shared, NULL);
    self->forks = sonde_forks;
    self->text = self->ring_map = self->page_map = self->opener = NULL;
    tell_subs(self);
}

static void drop(PyObject *old[4])
{
    for (int i = 0; i < 4; i++)
        Py_XDECREF(old[i]);
}

static void writer_dealloc(WriterObject *self)
{
    PyObject *old[4];
    writer_release(self, old);
    drop(old);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *writer_attach(WriterObject *self, PyObject *args)
{
    PyObject *ring_map, *text, *page_map = Py_None;
    if (!PyArg_ParseTuple(args, "O!O!|O", &sonde_MapType, &ring_map, &sonde_TextType, &text,
                          &page_map))
        return NULL;
    void *mem = sonde_map_memory(ring_map, 1);
    if (mem == NULL)
        return NULL;
    sonde_ring_handle ring;
    int status = sonde_ring_open(&ring, mem, ((MapObject *)ring_map)->bytes);
    if (status < 0)
        return sonde_raise(status, "ring");
    if (ring.row_bytes != self->layout.row_bytes) {
        PyErr_SetString(PyExc_ValueError, "the ring holds rows of another shape");
        return NULL;
    }
    const uint32_t *on = &always_on;
    if (page_map != Py_None) {
        sonde_control *page = sonde_map_memory(page_map, 0);
        if (page == NULL)
            return NULL;
        status = sonde_control_verify(page, ((MapObject *)page_map)->bytes);
        if (status < 0)
            return sonde_raise(status, "control page");
        on = &page->on;
    }
    PyObject *old[4];
    SONDE_EXCLUDE_BEGIN(self)
    writer_release(self, old);
    self->ring = ring;
    self->text = Py_NewRef(text);
    self->ring_map = Py_NewRef(ring_map);
    self->page_map = Py_NewRef(page_map);
    self->on = on;
    tell_subs(self);
    SONDE_EXCLUDE_END
    drop(old);
    Py_RETURN_NONE;
}

static PyObject *writer_later(WriterObject *self, PyObject *opener)
{
    PyObject *old[4];
    SONDE_EXCLUDE_BEGIN(self)
    writer_release(self, old);
    self->opener = Py_XNewRef(opener);
    self->on = opener == NULL ? &always_off : &always_on;
    tell_subs(self);
    SONDE_EXCLUDE_END
    drop(old);
    Py_RETURN_NONE;
}

static PyObject *writer_detach(WriterObject *self, PyObject *Py_UNUSED(none)) { return writer_later(self, NULL); }

PyObject *sonde_writer_ring(PyObject *object, const char *kinds, sonde_ring_handle *ring)
{
    WriterObject *self = (WriterObject *)object;
    if (sonde_writer_is(object, kinds) < 0)
        return NULL;
    PyObject *map;
    SONDE_EXCLUDE_BEGIN(self)
    *ring = self->ring;
    map = find_ring(self) == NULL ? NULL : Py_NewRef(self->ring_map);
    SONDE_EXCLUDE_END
    if (map == NULL)
        PyErr_SetString(PyExc_OSError, "there is no room for the rows of this table");
    return map;
}

int sonde_writer_lend(PyObject *writer, sonde_lent_ring *to)
{
    WriterObject *self = (WriterObject *)writer;
    int is_lent;
    SONDE_EXCLUDE_BEGIN(self)
    self->lent = to;
    is_lent = find_ring(self) != NULL;
    if (is_lent || self->forks == sonde_forks)
        tell_subs(self);
    SONDE_EXCLUDE_END
    return is_lent;
}

static PyObject *writer_row_bytes(WriterObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(self->layout.row_bytes);
}

static PyObject *writer_attached(WriterObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(find_ring(self) != NULL);
}

static PyMethodDef writer_methods[] = {
    {"attach", (PyCFunction)writer_attach, METH_VARARGS,
     "attach(ring, text, page=None): write rows there while the control page says so."},
    {"later", (PyCFunction)writer_later, METH_O,
     "later(opener): call `opener` at the first row; it attaches or detaches this writer."},
    {"detach", (PyCFunction)writer_detach, METH_NOARGS, "Write nowhere: calls then do nothing."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef writer_getset[] = {
    {"attached", (getter)writer_attached, NULL, "Does it have a ring?", NULL},
    {"row_bytes", (getter)writer_row_bytes, NULL, "Bytes of a row.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject sonde_WriterType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Writer",
    .tp_basicsize = sizeof(WriterObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Writer(kinds, optional, timed=False, strict=False, guest=False): call it with a row's values.",
    .tp_new = writer_new,
    .tp_dealloc = (destructor)writer_dealloc,
    .tp_vectorcall_offset = offsetof(WriterObject, call),
    .tp_call = PyVectorcall_Call,
    .tp_methods = writer_methods,
    .tp_getset = writer_getset,
};
