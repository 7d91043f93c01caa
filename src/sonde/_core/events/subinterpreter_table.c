/* Emit: what a subinterpreter writes to tables of the program, and the steps that it ends. */
#include "binding/row_values.h"
#include "events/events.h"
#include "kernel/fork.h"

#include <stdlib.h>
#include <structmember.h>

/* A table of the process that a subinterpreter has opened. They stay for good, like the writers. */
typedef struct lent_table {
    struct lent_table *next;
    PyObject *writer; /* of the main interpreter, and touched only there */
    sonde_lent_ring lent;
} lent_table;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    sonde_sub *sub;
    lent_table *table;
    int timed; /* the first column is filled in from the clock */
    sonde_row_layout layout;
} EmitObject;

/* ---- in the main interpreter ----------------------------------------------------------- */

typedef struct {
    const char *schema;
    Py_ssize_t bytes;
    int timed;
    lent_table *table; /* NULL: there is none, */
    char *why;         /* for this reason, which the caller frees; or NULL */
} table_request;

static lent_table *find_table(PyObject *writer)
{
    static lent_table *tables;
    lent_table *found;
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    for (found = tables; found != NULL && found->writer != writer; found = found->next)
        ;
    if (found == NULL && (found = calloc(1, sizeof *found)) != NULL) {
        found->writer = Py_NewRef(writer);
        found->next = tables;
        tables = found;
        (void)sonde_writer_lend(writer, &found->lent);
    }
    SONDE_EXCLUDE_END
    return found;
}

static PyObject *call_main(const char *module, const char *function, PyObject *args)
{
    PyObject *found = PyImport_ImportModule(module);
    PyObject *call = found == NULL ? NULL : PyObject_GetAttrString(found, function);
    PyObject *result = call == NULL ? NULL : PyObject_CallObject(call, args);
    Py_XDECREF(call);
    Py_XDECREF(found);
    return result;
}

static void open_in_main(void *argument)
{
    table_request *request = argument;
    PyObject *args = Py_BuildValue("(y#i)", request->schema, request->bytes, request->timed);
    PyObject *result = args == NULL ? NULL : call_main("sonde.job.subinterpreter_table", "open_in_main", args);
    Py_XDECREF(args);
    if (result != NULL && PyUnicode_Check(result)) {
        const char *why = PyUnicode_AsUTF8(result);
        request->why = why == NULL ? NULL : strdup(why);
    } else if (result != NULL && Py_IS_TYPE(result, &sonde_WriterType)) {
        request->table = find_table(result);
    }
    Py_XDECREF(result);
    PyErr_Clear(); /* whatever it is, the program goes on without the table */
}

/* Have the ring of a table made. */
static void make_ring(void *table)
{
    if (sonde_writer_open(((lent_table *)table)->writer) < 0)
        PyErr_Clear();
}

typedef struct {
    int64_t number;
    int is_known;
} step_request;

static void end_in_main(void *argument)
{
    step_request *request = argument;
    PyObject *result = call_main("sonde.job.torch.steps", "step", NULL);
    if (result != NULL && PyLong_Check(result)) {
        request->number = PyLong_AsLongLong(result);
        request->is_known = 1;
    }
    Py_XDECREF(result);
    PyErr_Clear();
}

/* ---- in the subinterpreter --------------------------------------------------------------- */

/* With the lock: is there a ring of this process? */
static int is_open(const sonde_lent_ring *lent) { return lent->ring.shared != NULL && lent->forks == sonde_forks; }

/* Are rows wanted? If all that is missing is the ring, have it made. */
static int is_wanted(const EmitObject *self)
{
    sonde_lent_ring *lent = &self->table->lent;
    sonde_sub_lock();
    int is_due = lent->is_due && lent->forks == sonde_forks;
    int is_on = is_open(lent) && sonde_load_relaxed(lent->on);
    sonde_sub_unlock();
    if (!is_due || is_on)
        return is_on;
    sonde_sub_visit(make_ring, self->table);
    return 1;
}

static int is_text(const EmitObject *self, int column, PyObject *value)
{
    return self->layout.kind[column] == 't' && (value != Py_None || self->layout.null_bit[column] < 0);
}

/* Put all but texts into the row. A value's own __index__ may run any code, so this is without the lock. */
static int put_numbers(const EmitObject *self, sonde_row *row, PyObject *const *args, Py_ssize_t given)
{
    for (int i = 0; i < given; i++) {
        int column = self->timed + i;
        if (!is_text(self, column, args[i])) {
            if (put_value(&self->layout, row, column, args[i]) < 0)
                return -1;
        } else if (!PyUnicode_Check(args[i])) {
            PyErr_Format(PyExc_TypeError, "expected text, not %.100s", Py_TYPE(args[i])->tp_name);
            return -1;
        } else {
            sonde_name_prepare(args[i]);
        }
    }
    if (self->timed)
        row->words[0] = (uint64_t)sonde_clock_ns();
    return 0;
}

/* With the lock: put the texts. One that finds no room is NULL, and counted. */
static void put_texts(const EmitObject *self, sonde_row *row, PyObject *const *args, Py_ssize_t given)
{
    const sonde_lent_ring *lent = &self->table->lent;
    for (int i = 0; i < given; i++) {
        int column = self->timed + i;
        if (!is_text(self, column, args[i]))
            continue;
        int64_t id = sonde_text_put(&lent->text, args[i], SONDE_TEXTS_VALUES);
        uint32_t small = id < 0 ? 0 : (uint32_t)id;
        if (id < 0)
            PyErr_Clear();
        if (small == 0) {
            sonde_add_relaxed(&lent->ring.shared->text_lost, 1);
            if (self->layout.null_bit[column] >= 0)
                row->nulls |= 1u << self->layout.null_bit[column];
        }
        memcpy((char *)row->words + self->layout.offset[column], &small, sizeof small);
    }
}

/* Write the row, or count that it did not fit. */
static void write_row(const EmitObject *self, sonde_row *row, PyObject *const *args, Py_ssize_t given, int fits)
{
    sonde_lent_ring *lent = &self->table->lent;
    sonde_sub_take(self->sub, 0);
    if (is_open(lent) && sonde_load_relaxed(lent->on)) {
        if (fits) {
            put_texts(self, row, args, given);
            (void)sonde_ring_append(&lent->ring, row->words, row->nulls); /* a drop is counted there */
        } else {
            sonde_add_relaxed(&lent->ring.shared->misfit, 1);
        }
    }
    sonde_sub_give(self->sub);
}

static PyObject *emit_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    const EmitObject *self = (EmitObject *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    if (!is_wanted(self))
        Py_RETURN_NONE;
    sonde_row row;
    row.nulls = 0;
    memset(row.words, 0, self->layout.row_bytes);
    int fits = given == self->layout.columns - self->timed && kwnames == NULL &&
               put_numbers(self, &row, args, given) == 0;
    /* Such as a Ctrl-C in a value's __float__: it is the program's. */
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyErr_Clear();
    write_row(self, &row, args, given, fits);
    Py_RETURN_NONE;
}

static PyObject *make_emit(sonde_sub *sub, lent_table *table, const sonde_row_layout *layout, int timed)
{
    EmitObject *self = PyObject_New(EmitObject, sub->emit_type);
    if (self == NULL)
        return NULL;
    self->call = emit_call;
    self->sub = sub;
    self->table = table;
    self->timed = timed;
    self->layout = *layout;
    return (PyObject *)self;
}

PyObject *sonde_sub_open_table(PyObject *module, PyObject *args)
{
    const char *kinds, *optional;
    sonde_row_layout layout;
    table_request request = {0};
    if (!PyArg_ParseTuple(args, "y#ssp", &request.schema, &request.bytes, &kinds, &optional, &request.timed) ||
        sonde_row_layout_make(&layout, kinds, optional) < 0)
        return NULL;
    sonde_sub_visit(open_in_main, &request);
    if (request.table != NULL)
        return make_emit(PyModule_GetState(module), request.table, &layout, request.timed);
    if (request.why == NULL)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, request.why);
    free(request.why);
    return NULL;
}

PyObject *sonde_sub_end_step(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    step_request request = {0};
    sonde_sub_visit(end_in_main, &request);
    if (!request.is_known)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(request.number);
}

static void emit_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMemberDef emit_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(EmitObject, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot emit_slots[] = {
    {Py_tp_dealloc, emit_dealloc}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, emit_members}, {0, NULL},
};

PyType_Spec sonde_sub_emit = {
    .name = "sonde._core.Writer",
    .basicsize = sizeof(EmitObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = emit_slots,
};
