/* Publication: the calls so far, as rows. */
#include "calls/calls.h"

/* ---- sums ----------------------------------------------------------------------------- */

static void add(sonde_numbers *sum, const sonde_numbers *more)
{
    sum->calls += more->calls;
    sum->recursive += more->recursive;
    sum->own += more->own;
    sum->total += more->total;
}

/* Add a call in progress as if it ended now. */
static void add_call(const sonde_call *call, int64_t inner, int64_t now)
{
    sonde_edge *edge = call->edge;
    int64_t total = now - call->start;
    edge->link->sum.own += total - call->inner - inner;
    if (edge->is_coroutine)
        return; /* add_awaited counts the rest */
    edge->link->sum.calls++;
    if (edge->flight++ == 0)
        edge->link->sum.total += total;
    else
        edge->link->sum.recursive++;
    if (edge->callee->flight++ == 0)
        edge->callee->function->sum.total += total;
    else
        edge->callee->function->sum.recursive++;
}

static void add_thread(const sonde_call_thread *calls, int64_t now)
{
    for (size_t i = 0; i < calls->nodes.size; i++) {
        sonde_called *node = calls->nodes.slots[i];
        if (node != NULL) {
            node->flight = 0;
            node->function->sum.recursive += node->recursive;
            node->function->sum.total += node->total;
        }
    }
    for (size_t i = 0; i < calls->edges.size; i++) {
        sonde_edge *edge = calls->edges.slots[i];
        if (edge != NULL) {
            edge->flight = 0;
            add(&edge->link->sum, &edge->numbers);
        }
    }
    /* For a thread whose hook the program replaced, time stands still. */
    now = now > calls->last && sonde_is_hooked(calls->ident) ? now : calls->last;
    /* From the bottom up: of several calls of a function, the first is the outermost. */
    for (const sonde_call *call = calls->stack + 1; call <= calls->top; call++)
        add_call(call, call < calls->top ? now - call[1].start : 0, now);
}

static void add_awaited(const sonde_awaited *awaited, int64_t now)
{
    sonde_link *link = sonde_link_find(awaited->caller, awaited->callee);
    int64_t total = now > awaited->start ? now - awaited->start : 0;
    if (link == NULL)
        return;
    link->sum.calls++;
    if (awaited->is_outer_edge)
        link->sum.total += total;
    else
        link->sum.recursive++;
    if (awaited->is_outer_call)
        awaited->callee->sum.total += total;
    else
        awaited->callee->sum.recursive++;
}

#define FOR_EACH(type, item, set)                                            \
    for (size_t at_ = 0; at_ < (set).size; at_++)                            \
        for (type *item = (set).slots[at_]; item != NULL; item = NULL)

static void fold_ended(void)
{
    for (sonde_call_thread **at = &sonde_calls.threads; *at != NULL;) {
        sonde_call_thread *calls = *at;
        /* Acquire: we see all that the thread did before it ended. */
        if (sonde_load_acquire(&calls->ended)) {
            *at = calls->next;
            sonde_call_thread_fold(calls);
            sonde_call_thread_release(calls);
        } else {
            at = &calls->next;
        }
    }
}

static void add_all(int64_t now)
{
    fold_ended();
    FOR_EACH(sonde_function, function, sonde_calls.functions)
        function->sum = function->past;
    if (sonde_calls.crowd != NULL)
        sonde_calls.crowd->sum = sonde_calls.crowd->past;
    FOR_EACH(sonde_link, link, sonde_calls.links)
        link->sum = link->past;
    for (const sonde_call_thread *calls = sonde_calls.threads; calls != NULL; calls = calls->next)
        add_thread(calls, now);
    FOR_EACH(sonde_awaited, awaited, sonde_calls.awaited)
        add_awaited(awaited, now);
    FOR_EACH(sonde_link, link, sonde_calls.links) {
        link->callee->sum.calls += link->sum.calls;
        link->callee->sum.own += link->sum.own;
    }
}

/* ---- rows ------------------------------------------------------------------------------ */

typedef struct {
    PyObject *writer;
    PyObject *t_ns, *number;
    sonde_rate rate;
    int is_full;      /* write every row, changed or not */
    uint64_t written;
} publication;

enum { COLUMNS = 12 };

/* Append one row. Returns 0, or -1 if there is no memory. Runs no code of the program. */
static int write_row(publication *to, const sonde_function *function, const sonde_function *caller,
                     const sonde_published *published)
{
    const sonde_numbers *numbers = &published->numbers;
    PyObject *made[] = {
        PyLong_FromLong(function->lineno),
        PyLong_FromLong(caller == NULL ? 0 : caller->lineno),
        PyLong_FromLongLong(numbers->calls),
        PyLong_FromLongLong(numbers->calls - numbers->recursive),
        PyLong_FromLongLong(published->own_ns),
        PyLong_FromLongLong(published->total_ns),
    };
    PyObject *values[COLUMNS] = {
        to->t_ns, to->number, function->name, function->file, made[0],
        caller == NULL ? Py_None : caller->name, caller == NULL ? Py_None : caller->file,
        caller == NULL ? Py_None : made[1], made[2], made[3], made[4], made[5],
    };
    PyObject *result = NULL;
    if (made[0] && made[1] && made[2] && made[3] && made[4] && made[5])
        result = PyObject_Vectorcall(to->writer, values, COLUMNS, NULL);
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        Py_XDECREF(made[i]);
    Py_XDECREF(result);
    to->written += result != NULL;
    return result == NULL ? -1 : 0;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Write the row of a function or a link, if it is due. */
static int write_due(publication *to, const sonde_function *function, const sonde_function *caller,
                     const sonde_numbers *now, sonde_published *published)
{
    const sonde_numbers *before = &published->numbers;
    int changed = now->calls != before->calls || now->recursive != before->recursive ||
                  now->own != before->own || now->total != before->total;
    if (!changed && !(to->is_full && now->calls > 0))
        return 0;
    published->numbers = *now;
    /* The rate is measured again each time; a published time never goes back. */
    published->own_ns = larger(sonde_ticks_to_ns(to->rate, now->own), published->own_ns);
    published->total_ns = larger(sonde_ticks_to_ns(to->rate, now->total), published->total_ns);
    return write_row(to, function, caller, published);
}

static int write_rows(publication *to)
{
    if (sonde_calls.crowd != NULL && write_due(to, sonde_calls.crowd, NULL, &sonde_calls.crowd->sum,
                                               &sonde_calls.crowd->published) < 0)
        return -1;
    FOR_EACH(sonde_function, function, sonde_calls.functions)
        if (write_due(to, function, NULL, &function->sum, &function->published) < 0)
            return -1;
    FOR_EACH(sonde_link, link, sonde_calls.links)
        if (link->caller != NULL &&
            write_due(to, link->callee, link->caller, &link->sum, &link->published) < 0)
            return -1;
    return 0;
}

/* Write the row that makes a publication count, but only if all its rows are in the ring. */
static int write_publication(const publication *from, PyObject *publications)
{
    PyObject *first = PyLong_FromUnsignedLong(sonde_calls.first);
    PyObject *rows = PyLong_FromUnsignedLongLong(from->written);
    PyObject *result = NULL;
    if (first != NULL && rows != NULL) {
        PyObject *values[] = {from->t_ns, from->number, first, rows};
        result = PyObject_Vectorcall(publications, values, 4, NULL);
    }
    Py_XDECREF(first);
    Py_XDECREF(rows);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static uint32_t numbers; /* publications of this process, over all its runs */

static int publish_to(publication *to, PyObject *publications)
{
    uint64_t room, before, after;
    if (sonde_writer_count(to->writer, &before, &room) < 0)
        return 0; /* paused, or there is no recording: changes stay due */
    uint64_t most = sonde_calls.functions.used + sonde_calls.links.used + 1;
    /* Rows that did not change must not be lost when the ring wraps around. */
    to->is_full = sonde_calls.is_unsure || sonde_calls.rows_since_full + 2 * most > room;
    if (sonde_calls.first == 0)
        sonde_calls.first = numbers;
    int status = write_rows(to);
    sonde_calls.rows_since_full = (to->is_full ? 0 : sonde_calls.rows_since_full) + to->written;
    int all = status == 0 && sonde_writer_count(to->writer, &after, &room) == 0 &&
              after - before == to->written;
    sonde_calls.is_unsure = !all;
    return all ? write_publication(to, publications) : status;
}

int sonde_publish(PyObject *rows, PyObject *publications)
{
    sonde_moment now = sonde_read_moment();
    publication to = {.writer = rows, .rate = sonde_ticks_rate(&sonde_calls.begin, &now)};
    add_all(now.ticks);
    to.t_ns = PyLong_FromLongLong(now.ns);
    to.number = PyLong_FromUnsignedLong(++numbers);
    int status = to.t_ns == NULL || to.number == NULL ? -1 : publish_to(&to, publications);
    Py_XDECREF(to.t_ns);
    Py_XDECREF(to.number);
    return status;
}
