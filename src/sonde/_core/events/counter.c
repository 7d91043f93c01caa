/* Count: values that change. Also the attributes of all events. */
#include "events/events.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers --------------------------------------------------------------------- */

/* Is this a number of NumPy? Its own methods return its value at no cost. Other types are not
 * asked: a tensor would wait for the device. */
static int is_numpy(PyObject *value) { return strncmp(Py_TYPE(value)->tp_name, "numpy.", 6) == 0; }

int sonde_number(PyObject *value, double *number, int64_t *whole, int *is_whole)
{
    *is_whole = 0;
    *whole = 0;
    if (PyFloat_Check(value)) {
        *number = PyFloat_AS_DOUBLE(value);
        return 0;
    }
    if (!PyLong_Check(value)) {
        *number = PyFloat_AsDouble(value);
        return *number == -1.0 && PyErr_Occurred() ? -1 : 0;
    }
    int overflow;
    *whole = PyLong_AsLongLongAndOverflow(value, &overflow);
    *is_whole = !overflow;
    if (*is_whole) {
        *number = (double)*whole;
        return 0;
    }
    *whole = 0;
    *number = PyLong_AsDouble(value);
    if (*number == -1.0 && PyErr_Occurred()) {
        PyErr_Clear(); /* larger than any double */
        *number = overflow > 0 ? Py_HUGE_VAL : -Py_HUGE_VAL;
    }
    return 0;
}

/* ---- attributes ------------------------------------------------------------------ */

PyObject *sonde_attribute_plain(PyObject *value)
{
    if (PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
        PyBool_Check(value) || value == Py_None)
        return Py_NewRef(value);
    if (PyUnicode_Check(value))
        return PyUnicode_FromObject(value);
    /* Methods of subclasses belong to the program: they may do and raise anything. */
    if (PyLong_Check(value))
        return PyLong_Type.tp_as_number->nb_int(value);
    if (PyFloat_Check(value))
        return PyFloat_FromDouble(PyFloat_AS_DOUBLE(value));
    if (is_numpy(value)) {
        PyObject *plain = PyIndex_Check(value) ? PyNumber_Index(value) : NULL;
        if (plain == NULL) {
            PyErr_Clear();
            plain = PyNumber_Float(value);
        }
        if (plain != NULL)
            return plain;
        PyErr_Clear();
    }
    return PyUnicode_FromFormat("<%s>", Py_TYPE(value)->tp_name);
}

static int put_attribute(sonde_sub *sub, int64_t id, int64_t t_ns, PyObject *key, PyObject *value)
{
    sonde_attribute_row row = {.t_ns = t_ns, .id = id, .key = sonde_events_text(sub, TO_ATTRIBUTE, key)};
    uint32_t nulls = ATTRIBUTE_NUMBER | ATTRIBUTE_WHOLE | ATTRIBUTE_TEXT;
    PyObject *plain = sonde_attribute_plain(value);
    int is_whole = 0;
    if (plain == NULL || plain == Py_None) {
        PyErr_Clear();
    } else if (PyUnicode_Check(plain)) {
        row.text = sonde_events_value(sub, plain);
        nulls &= row.text ? ~(uint32_t)ATTRIBUTE_TEXT : nulls;
    } else if (sonde_number(plain, &row.number, &row.whole, &is_whole) == 0) {
        nulls &= ~(uint32_t)(ATTRIBUTE_NUMBER | (is_whole ? ATTRIBUTE_WHOLE : 0));
    } else {
        PyErr_Clear();
    }
    Py_XDECREF(plain);
    return sonde_events_put(sub, TO_ATTRIBUTE, &row, nulls);
}

int sonde_attributes_put(sonde_sub *sub, int64_t id, int64_t t_ns, PyObject *keys, PyObject *const *values)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++) {
        if (put_attribute(sub, id, t_ns, PyTuple_GET_ITEM(keys, i), values[i]) < 0) {
            PyErr_Clear();
            return -1;
        }
    }
    return 0;
}

/* ---- Count ----------------------------------------------------------------------- */

typedef struct {
    SONDE_NAMED_HEAD
    PyObject *value; /* None before it was first set */
} CountObject;

/* The sums are doubles, which do not hold every whole number beyond 2^53. Of such numbers this
 * process also keeps the exact ones, by the index of their sum. */
enum { LOW = 1, HIGH = 2, LAST = 4 };
typedef struct {
    int64_t low, high, last;
    uint32_t has;
} exact_values;
static exact_values *exact; /* NULL until it is needed, which is hardly ever */

static void keep_exact(const sonde_sum *sum, const sonde_counter_row *row, int is_whole)
{
    int is_large = is_whole && fabs(row->value) >= 9007199254740992.0;
    if (exact == NULL && (!is_large || (exact = calloc(SONDE_TOTALS_SUMS, sizeof *exact)) == NULL))
        return;
    exact_values *one = &exact[sum - sonde_totals_sum(sonde_events.totals, 0)];
    one->has &= sum->count == 0 || row->value < sum->low ? ~(uint32_t)LOW : UINT32_MAX;
    one->has &= sum->count == 0 || row->value > sum->high ? ~(uint32_t)HIGH : UINT32_MAX;
    one->has &= ~(uint32_t)LAST;
    if (!is_large)
        return;
    int is_lowest = sum->count == 0 || row->value <= sum->low, is_highest = sum->count == 0 || row->value >= sum->high;
    if (is_lowest && (!(one->has & LOW) || row->whole < one->low))
        one->low = row->whole;
    if (is_highest && (!(one->has & HIGH) || row->whole > one->high))
        one->high = row->whole;
    one->last = row->whole;
    one->has |= LAST | (is_lowest ? LOW : 0u) | (is_highest ? HIGH : 0u);
}

static PyObject *make_number(double value, int is_exact, int64_t whole)
{
    return is_exact ? PyLong_FromLongLong(whole) : PyFloat_FromDouble(value);
}

PyObject *sonde_count_values(uint64_t at, const sonde_sum *sum, double mean)
{
    exact_values none = {0}, one = exact == NULL ? none : exact[at];
    return Py_BuildValue("NNdN", make_number(sum->low, one.has & LOW, one.low),
                         make_number(sum->high, one.has & HIGH, one.high), mean,
                         make_number(sum->last, one.has & LAST, one.last));
}

static void add_value(const sonde_counter_row *row, int is_whole)
{
    sonde_sum *sum = sonde_events_sum(SONDE_COUNTER, row->domain, row->name);
    if (sum == NULL)
        return;
    int64_t paused_ns = sonde_events_paused_ns(row->t_ns);
    int64_t held_ns = row->t_ns - sum->last_ns - (paused_ns - sum->paused_ns);
    keep_exact(sum, row, is_whole);
    sonde_sum_begin(sum);
    /* One infinite value or NaN must not spoil all values that follow it. */
    if (sum->count > 0 && held_ns > 0 && isfinite(sum->last)) {
        sum->area += sum->last * (double)held_ns;
        sum->total_ns += held_ns;
    }
    if (sum->count == 0)
        sum->first_ns = row->t_ns;
    if (sum->count == 0 || isnan(sum->low))
        sum->low = sum->high = row->value;
    sum->count++;
    sum->paused_ns = paused_ns;
    sum->last_ns = row->t_ns;
    sum->last = row->value;
    if (row->value < sum->low)
        sum->low = row->value;
    if (row->value > sum->high)
        sum->high = row->value;
    sonde_sum_end(sum);
}

static int write_row(const CountObject *self, sonde_counter_row *row, int is_whole)
{
    row->name = sonde_events_text(self->sub, TO_COUNTER, self->name);
    row->domain = sonde_events_text(self->sub, TO_COUNTER, self->domain);
    row->t_ns = sonde_clock_ns();
    int is_held = sonde_subs_hold(self->sub);
    add_value(row, is_whole);
    sonde_subs_let(is_held);
    return sonde_events_put(self->sub, TO_COUNTER, row,
                            (row->domain ? 0 : COUNTER_DOMAIN) | (is_whole ? 0 : COUNTER_WHOLE));
}

/* Write a value, of which the caller has a reference: the counter may have another one soon. */
static int record(const CountObject *self, PyObject *value)
{
    if (self->sub == NULL && !sonde_events_ready(NULL))
        return 0;
    sonde_counter_row row = {.thread = sonde_find_tid(), .interpreter = sonde_sub_number(self->sub)};
    int is_whole, status = 0;
    /* A number's own __float__ may run any code, so this comes before the lock. */
    if (sonde_number(value, &row.value, &row.whole, &is_whole) < 0) {
        PyErr_Clear();
        return 0;
    }
    sonde_sub_enter(self->sub, 1u << TO_COUNTER);
    if (self->sub == NULL || sonde_events_ready(self->sub))
        status = write_row(self, &row, is_whole);
    sonde_sub_leave(self->sub);
    if (status < 0 || self->sub != NULL)
        return status;
    return sonde_events_mirror("count", self->domain, self->name, SONDE_COUNTER, 0, value);
}

static int set_value(CountObject *self, PyObject *value)
{
    if (!PyNumber_Check(value)) {
        PyErr_Format(PyExc_TypeError, "a counter's value must be a number, not %.100s",
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    int status;
    PyObject *before;
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    before = self->value;
    self->value = Py_NewRef(value);
    status = record(self, value);
    SONDE_EXCLUDE_END
    Py_XDECREF(before);
    return status;
}

static int change_in_turn(CountObject *self, PyObject *by, int sign)
{
    PyObject *was = self->value == Py_None ? PyLong_FromLong(0) : Py_NewRef(self->value);
    if (was == NULL)
        return -1;
    PyObject *value = sign > 0 ? PyNumber_Add(was, by) : PyNumber_Subtract(was, by);
    Py_DECREF(was);
    if (value == NULL)
        return -1;
    PyObject *before = self->value;
    self->value = Py_NewRef(value);
    int status = record(self, value);
    Py_XDECREF(before);
    Py_DECREF(value);
    return status;
}

static int change(CountObject *self, PyObject *by, int sign)
{
    int status;
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    status = change_in_turn(self, by, sign);
    SONDE_EXCLUDE_END
    return status;
}

/* Return the one argument of a method, which may be given by its name; NULL, without an exception if
 * there is none. */
static PyObject *find_argument(PyObject *const *args, Py_ssize_t given, PyObject *kwnames, const char *name)
{
    Py_ssize_t named = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    if (given + named > 1 || (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), name))) {
        PyErr_Format(PyExc_TypeError, "expected one argument: %s", name);
        return NULL;
    }
    return given + named == 1 ? args[0] : NULL;
}

static PyObject *count_set_value(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *kwnames)
{
    PyObject *value = find_argument(args, given, kwnames, "value");
    if (value == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "set_value() needs a value");
    if (value == NULL || set_value((CountObject *)self, value) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *count_change(PyObject *self, PyObject *const *args, Py_ssize_t given,
                              PyObject *kwnames, int sign)
{
    PyObject *by = find_argument(args, given, kwnames, "delta");
    by = by != NULL ? Py_NewRef(by) : PyErr_Occurred() ? NULL : PyLong_FromLong(1);
    int status = by == NULL ? -1 : change((CountObject *)self, by, sign);
    Py_XDECREF(by);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *count_increment(PyObject *self, PyObject *const *args, Py_ssize_t given,
                                 PyObject *kwnames)
{
    return count_change(self, args, given, kwnames, 1);
}

static PyObject *count_decrement(PyObject *self, PyObject *const *args, Py_ssize_t given,
                                 PyObject *kwnames)
{
    return count_change(self, args, given, kwnames, -1);
}

static PyObject *count_iadd(PyObject *self, PyObject *by)
{
    return change((CountObject *)self, by, 1) < 0 ? NULL : Py_NewRef(self);
}

static PyObject *count_isub(PyObject *self, PyObject *by)
{
    return change((CountObject *)self, by, -1) < 0 ? NULL : Py_NewRef(self);
}

static PyObject *count_get_value(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *value;
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    value = Py_NewRef(((CountObject *)self)->value);
    SONDE_EXCLUDE_END
    return value;
}

static int count_put_value(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "the value of a counter cannot be deleted");
        return -1;
    }
    return set_value((CountObject *)self, value);
}

static PyObject *count_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *self = sonde_named_parse(type, args, kwargs);
    if (self != NULL)
        ((CountObject *)self)->value = Py_NewRef(Py_None);
    return self;
}

static void count_dealloc(PyObject *object)
{
    Py_CLEAR(((CountObject *)object)->value);
    sonde_NamedType.tp_dealloc(object);
}

static PyObject *count_repr(PyObject *object)
{
    CountObject *self = (CountObject *)object;
    return PyUnicode_FromFormat("<counter %R: %R>", self->name, self->value);
}

static PyMethodDef count_methods[] = {
    {"set_value", (PyCFunction)(void (*)(void))count_set_value, METH_FASTCALL | METH_KEYWORDS,
     "set_value(value): set the value, which may be any number."},
    {"increment", (PyCFunction)(void (*)(void))count_increment, METH_FASTCALL | METH_KEYWORDS,
     "increment(delta=1)"},
    {"decrement", (PyCFunction)(void (*)(void))count_decrement, METH_FASTCALL | METH_KEYWORDS,
     "decrement(delta=1)"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef count_getset[] = {
    {"value", count_get_value, count_put_value, "The value it was last set to; None before the first.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyNumberMethods count_numbers = {
    .nb_inplace_add = count_iadd,
    .nb_inplace_subtract = count_isub,
};

PyTypeObject sonde_CountType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Count",
    .tp_basicsize = sizeof(CountObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_doc = "Count(name, domain=None): a value that changes.",
    .tp_base = &sonde_NamedType,
    .tp_new = count_new,
    .tp_dealloc = count_dealloc,
    .tp_repr = count_repr,
    .tp_as_number = &count_numbers,
    .tp_methods = count_methods,
    .tp_getset = count_getset,
};

static PyType_Slot sub_slots[] = {
    {Py_tp_new, count_new},          {Py_tp_dealloc, count_dealloc},       {Py_tp_repr, count_repr},
    {Py_tp_methods, count_methods},  {Py_tp_getset, count_getset},         {Py_nb_inplace_add, count_iadd},
    {Py_nb_inplace_subtract, count_isub}, {0, NULL},
};

PyType_Spec sonde_sub_count = {
    .name = "sonde._core.Count",
    .basicsize = sizeof(CountObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = sub_slots,
};
