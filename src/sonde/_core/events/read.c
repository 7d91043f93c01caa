/* Sums and open regions as Python values: in the job, and from its file. */
#include "events/events.h"

#include <errno.h>
#include <math.h>

/* Return the mean of a counter over the time for which it was recorded and finite, up to
 * `until_ns`. */
static double find_mean(const sonde_sum *sum, int64_t until_ns, int64_t paused_ns)
{
    int64_t held_ns = until_ns - sum->last_ns - (paused_ns - sum->paused_ns);
    double tail_ns = held_ns > 0 && isfinite(sum->last) ? (double)held_ns : 0;
    double whole_ns = (double)sum->total_ns + tail_ns;
    if (whole_ns <= 0)
        return sum->last;
    return (sum->area + (tail_ns > 0 ? sum->last * tail_ns : 0)) / whole_ns;
}

/* Return the numbers of a sum, which depend on its kind; None where one has no meaning. */
static PyObject *numbers_of(const sonde_sum *sum, int64_t until_ns, int64_t paused_ns)
{
    if (sum->kind == SONDE_COUNTER)
        return Py_BuildValue("KOOOddddLL", (unsigned long long)sum->count, Py_None, Py_None, Py_None,
                             sum->low, sum->high, find_mean(sum, until_ns, paused_ns), sum->last,
                             (long long)sum->since_ns, (long long)sum->last_ns);
    if (sum->kind == SONDE_MARKER)
        return Py_BuildValue("KOOOOOOOLL", (unsigned long long)sum->count, Py_None, Py_None, Py_None,
                             Py_None, Py_None, Py_None, Py_None, (long long)sum->since_ns,
                             (long long)sum->last_ns);
    return Py_BuildValue("KLLLOOOOLL", (unsigned long long)sum->count, (long long)sum->total_ns,
                         (long long)sum->min_ns, (long long)sum->max_ns, Py_None, Py_None, Py_None,
                         Py_None, (long long)sum->since_ns, (long long)sum->last_ns);
}

static int append(PyObject *list, PyObject *item)
{
    int status = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return status;
}

/* Return a sum as (kind, domain id, name id, numbers…). */
static PyObject *describe_sum(const sonde_sum *sum, int64_t until_ns, int64_t paused_ns)
{
    PyObject *numbers = numbers_of(sum, until_ns, paused_ns);
    PyObject *head = Py_BuildValue("(sII)", sonde_kind_names[sum->kind], sum->domain, sum->name);
    PyObject *whole = head && numbers ? PySequence_Concat(head, numbers) : NULL;
    Py_XDECREF(numbers);
    Py_XDECREF(head);
    return whole;
}

/* Put the exact values of a counter of this process into a row. */
static PyObject *refine(PyObject *row, uint64_t at, const sonde_sum *sum)
{
    enum { FIRST = 7, VALUES = 4 }; /* low, high, mean and last */
    PyObject *values = NULL;
    if (row == NULL || sum->kind != SONDE_COUNTER ||
        (values = sonde_count_values(at, sum, PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(row, FIRST + 2)))) == NULL)
        return row;
    for (Py_ssize_t i = 0; i < VALUES; i++) {
        PyObject *before = PyTuple_GET_ITEM(row, FIRST + i);
        PyTuple_SET_ITEM(row, FIRST + i, Py_NewRef(PyTuple_GET_ITEM(values, i))); /* nobody has seen the tuple */
        Py_DECREF(before);
    }
    Py_DECREF(values);
    return row;
}

static int list_sums(const sonde_totals *totals, int64_t until_ns, int64_t paused_ns, PyObject *found,
                     unsigned long *damaged)
{
    int is_ours = totals == sonde_events.totals;
    uint64_t used = sonde_load_acquire(&totals->used);
    for (uint64_t at = 0; at < used && at < SONDE_TOTALS_SUMS; at++) {
        sonde_sum sum;
        int status = sonde_sum_read(sonde_totals_sum(totals, at), &sum);
        if (status < 0)
            ++*damaged;
        if (status < 0 || sum.count == 0)
            continue;
        PyObject *row = describe_sum(&sum, until_ns, paused_ns);
        if (append(found, is_ours ? refine(row, at, &sum) : row) < 0)
            return -1;
    }
    return 0;
}

static int list_open(const sonde_totals *totals, PyObject *found, unsigned long *damaged)
{
    for (uint32_t slot = 1; slot < SONDE_TOTALS_OPEN; slot++) {
        sonde_open open;
        if (sonde_load_relaxed(&sonde_totals_open(totals, slot)->seq) == 0)
            continue;
        if (sonde_open_read(sonde_totals_open(totals, slot), &open) < 0) {
            ++*damaged;
            continue;
        }
        if (open.is_open &&
            append(found, Py_BuildValue("LLLIIsiL", (long long)open.id, (long long)open.parent,
                                        (long long)open.t_ns, open.name, open.domain,
                                        sonde_kind_names[open.kind], open.thread,
                                        (long long)open.number)) < 0)
            return -1;
    }
    return 0;
}

PyObject *sonde_totals_read(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    long long until_ns, paused_ns;
    if (!PyArg_ParseTuple(args, "O!LL", &sonde_MapType, &map, &until_ns, &paused_ns))
        return NULL;
    const sonde_totals *totals = sonde_map_memory(map, 0);
    if (totals == NULL)
        return NULL;
    int status = sonde_totals_verify(totals, ((MapObject *)map)->bytes);
    if (status < 0)
        return sonde_raise(status, "event.totals");
    int64_t closed_ns = sonde_load_acquire(&totals->closed_ns);
    if (closed_ns != 0 && until_ns > closed_ns)
        paused_ns = until_ns - closed_ns; /* this includes the pauses of the page since then */
    paused_ns += sonde_load_relaxed(&totals->paused_ns);
    unsigned long damaged = 0;
    PyObject *sums = PyList_New(0), *open = PyList_New(0), *result = NULL;
    if (sums != NULL && open != NULL &&
        list_sums(totals, until_ns, paused_ns, sums, &damaged) == 0 &&
        list_open(totals, open, &damaged) == 0)
        result = Py_BuildValue("OOk", sums, open, damaged);
    Py_XDECREF(sums);
    Py_XDECREF(open);
    return result;
}

/* Return a text by its id, as this process wrote it. */
static PyObject *text_of(uint32_t id)
{
    uint32_t bytes_n;
    const char *bytes = sonde_intern_get(sonde_text_table(sonde_events.text), id, &bytes_n);
    return bytes == NULL ? Py_NewRef(Py_None)
                         : PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)bytes_n, "backslashreplace");
}

static PyObject *summarize(void)
{
    PyObject *found = PyList_New(0);
    const sonde_totals *totals = sonde_events.totals;
    if (found == NULL || totals == NULL)
        return found;
    int64_t now = sonde_clock_ns(), paused_ns = sonde_events_paused_ns(now);
    unsigned long damaged = 0;
    if (list_sums(totals, now, paused_ns, found, &damaged) < 0) {
        Py_DECREF(found);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(found); i++) {
        PyObject *row = PyList_GET_ITEM(found, i), *name;
        for (Py_ssize_t at = 1; at <= 2; at++) {
            uint32_t id = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(row, at));
            name = text_of(id);
            if (name == NULL) {
                Py_DECREF(found);
                return NULL;
            }
            PyObject *before = PyTuple_GET_ITEM(row, at);
            PyTuple_SET_ITEM(row, at, name); /* nobody else has seen this tuple yet */
            Py_DECREF(before);
        }
    }
    return found;
}

PyObject *sonde_events_summary(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    PyObject *found;
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    found = summarize();
    SONDE_EXCLUDE_END
    return found;
}
