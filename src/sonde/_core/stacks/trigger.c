/* Trigger: see trigger.h. Python arms slots, the native thread finds those that are due.
 *
 * A slot is due at a time. A step or a span that must not last longer than a second arms one when it
 * begins, for a second later, and disarms it when it ends; a counter arms one for right now.
 */
#define _GNU_SOURCE 1
#include "stacks/trigger.h"
#include "kernel/fork.h"
#include "kernel/thread.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SLOTS = 256, AT_ONCE = 8, CONDITIONS = 64 };
#define HOUR_NS INT64_C(3600000000000)
#define MEMORY_NS INT64_C(1000000000) /* between two looks at the size of the process */
#define WAIT_US 50
#define WAITS 400

typedef struct {
    int64_t due_ns;   /* atomic; 0: not armed */
    int64_t since_ns; /* the value is the time from this on, in seconds; 0: it is `value` */
    double value;
    uint32_t tid, condition;
    int is_bare; /* its stack is of no use */
} slot;

typedef struct {
    double limit;
    uint32_t condition;
    uint8_t is_below, is_met;
} counter;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *counters; /* a dict: name -> tuple of numbers of `watched` */
    PyObject *other;    /* other(*event): called for events that are not of counters */
    counter watched[CONDITIONS];
    uint32_t watched_n;
    PyObject *map;
    sonde_ring *ring;
    uint32_t texts[CONDITIONS];
    uint32_t conditions, most;
    uint32_t still;         /* condition that is met when nothing moves, plus 1; atomic, as is the limit */
    int64_t still_limit_ns;
    int64_t stood_ns;       /* since when everything stood still, when that condition was last met */
    uint32_t memory;        /* condition about the size of the process, plus 1 */
    double memory_limit;    /* in bytes */
    int64_t looked_ns;
    double peak_bytes;      /* nonzero: that condition is met */
    uint64_t number, missed;
    int64_t hour_ns; /* when the current hour began, and how many rows it has */
    uint32_t in_hour;
    slot slots[SLOTS + AT_ONCE]; /* the last ones are for fire() */
} TriggerObject;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `current` */
static TriggerObject *current;

static void forget_in_child(void)
{
    current = NULL;
    pthread_mutex_init(&lock, NULL);
}

SONDE_IN_CHILD(forget_in_child)

/* ---- the native thread ------------------------------------------------------------------ */

static int is_still(const TriggerObject *self, const sonde_sampler *s, int64_t now_ns)
{
    return sonde_load_relaxed(&self->still) && s->moved_ns != self->stood_ns &&
           now_ns - s->moved_ns > sonde_load_relaxed(&self->still_limit_ns);
}

/* The kernel keeps the most memory that the process ever had, so no moment is missed. */
static int is_large(TriggerObject *self, int64_t now_ns)
{
    struct rusage usage;
    if (self->memory == 0 || self->peak_bytes > 0 || now_ns - self->looked_ns < MEMORY_NS)
        return 0;
    self->looked_ns = now_ns;
    if (getrusage(RUSAGE_SELF, &usage) < 0 || (double)usage.ru_maxrss * 1024 <= self->memory_limit)
        return 0;
    self->peak_bytes = (double)usage.ru_maxrss * 1024;
    return 1;
}

static int is_due(const slot *one, int64_t now_ns)
{
    /* Acquire: the fields of a slot are written before the time at which it is due. */
    int64_t due_ns = sonde_load_acquire(&one->due_ns);
    return due_ns != 0 && due_ns <= now_ns;
}

static int find_due(TriggerObject *self, const sonde_sampler *s, int64_t now_ns)
{
    for (int i = 0; i < SLOTS + AT_ONCE; i++)
        if (is_due(&self->slots[i], now_ns))
            return 1;
    return is_still(self, s, now_ns) || is_large(self, now_ns);
}

int sonde_triggers_due(const sonde_sampler *s, int64_t now_ns)
{
    if (sonde_load_relaxed(&current) == NULL || !sonde_load_acquire(&s->page->on))
        return 0;
    pthread_mutex_lock(&lock);
    int found = current != NULL && find_due(current, s, now_ns);
    pthread_mutex_unlock(&lock);
    return found;
}

static int is_seen(const sonde_sampler *s, uint32_t tid, int64_t since_ns)
{
    for (uint32_t i = 0; i < s->threads.count; i++)
        if (s->threads.list[i]->tid == tid)
            return s->threads.list[i]->seen_ns >= since_ns;
    return 0;
}

int sonde_triggers_seen(const sonde_sampler *s, int64_t since_ns)
{
    pthread_mutex_lock(&lock);
    int seen = is_seen(s, (uint32_t)getpid(), since_ns);
    for (int i = 0; seen && current != NULL && i < SLOTS + AT_ONCE; i++)
        if (is_due(&current->slots[i], since_ns) && !current->slots[i].is_bare)
            seen = is_seen(s, current->slots[i].tid, since_ns);
    pthread_mutex_unlock(&lock);
    return seen;
}

/* Return the stack that the thread was last seen with; 0: none. */
static uint64_t find_stack(const sonde_sampler *s, uint32_t tid)
{
    for (uint32_t i = 0; i < s->threads.count; i++) {
        const sonde_sampled_thread *thread = s->threads.list[i];
        if (thread->tid == tid && thread->node != 0)
            return sonde_nodes_at(s->nodes, thread->node)->hash;
    }
    return 0;
}

/* May there be another row in this hour? */
static int has_room(TriggerObject *self, int64_t now_ns)
{
    if (self->hour_ns == 0 || now_ns - self->hour_ns > HOUR_NS) {
        self->hour_ns = now_ns;
        self->in_hour = 0;
    }
    if (self->in_hour >= self->most) {
        self->missed++;
        return 0;
    }
    self->in_hour++;
    return 1;
}

static void write_row(TriggerObject *self, const sonde_sampler *s, int64_t now_ns, const slot *met)
{
    if (!has_room(self, now_ns))
        return;
    sonde_trigger_row row = {
        .t_ns = now_ns,
        .number = ++self->number,
        .condition = self->texts[met->condition],
        .value = met->since_ns ? (double)(now_ns - met->since_ns) / 1e9 : met->value,
        .thread = met->tid,
        .stack = met->is_bare ? 0 : find_stack(s, met->tid),
        .missed = self->missed,
    };
    uint32_t nulls = (isnan(row.value) ? TRIGGER_VALUE : 0) | (row.stack ? 0 : TRIGGER_STACK);
    uint64_t words[sizeof row / 8];
    memcpy(words, &row, sizeof row);
    self->missed = 0;
    (void)sonde_ring_append(self->ring, words, nulls); /* a drop is counted there */
}

static void write_slot(TriggerObject *self, const sonde_sampler *s, int64_t now_ns, slot *one)
{
    /* Acquire: as in is_due(). */
    int64_t due_ns = sonde_load_acquire(&one->due_ns);
    slot copy = *one;
    /* Release: the copy is made before Python may use the slot again. If it was disarmed or armed
     * anew meanwhile, what the copy holds is not wanted. */
    if (due_ns != 0 && due_ns <= now_ns && sonde_cas_release(&one->due_ns, &due_ns, 0))
        write_row(self, s, now_ns, &copy);
}

static void write_all(TriggerObject *self, sonde_sampler *s, int64_t now_ns)
{
    for (int i = 0; i < SLOTS + AT_ONCE; i++)
        write_slot(self, s, now_ns, &self->slots[i]);
    uint32_t main_tid = (uint32_t)getpid();
    if (is_still(self, s, now_ns)) {
        self->stood_ns = s->moved_ns;
        slot met = {.since_ns = s->moved_ns, .tid = main_tid, .condition = self->still - 1};
        write_row(self, s, now_ns, &met);
    }
    if (self->peak_bytes > 0 && self->memory != 0) {
        slot met = {.value = self->peak_bytes, .tid = main_tid, .condition = self->memory - 1};
        self->memory = 0; /* once */
        write_row(self, s, now_ns, &met);
    }
}

void sonde_triggers_write(sonde_sampler *s, int64_t now_ns)
{
    pthread_mutex_lock(&lock);
    if (current != NULL)
        write_all(current, s, now_ns);
    pthread_mutex_unlock(&lock);
}

static int64_t find_next(const TriggerObject *self, const sonde_sampler *s)
{
    int64_t next_ns = self->memory ? self->looked_ns + MEMORY_NS : INT64_MAX;
    for (int i = 0; i < SLOTS + AT_ONCE; i++) {
        int64_t due_ns = sonde_load_relaxed(&self->slots[i].due_ns);
        if (due_ns != 0 && due_ns < next_ns)
            next_ns = due_ns;
    }
    int64_t still_ns = s->moved_ns + sonde_load_relaxed(&self->still_limit_ns) + 1;
    if (sonde_load_relaxed(&self->still) && s->moved_ns != self->stood_ns && still_ns < next_ns)
        next_ns = still_ns;
    return next_ns;
}

int64_t sonde_triggers_next(const sonde_sampler *s)
{
    int64_t next_ns = INT64_MAX;
    if (sonde_load_relaxed(&current) == NULL || !sonde_load_acquire(&s->page->on))
        return next_ns;
    pthread_mutex_lock(&lock);
    if (current != NULL)
        next_ns = find_next(current, s);
    pthread_mutex_unlock(&lock);
    return next_ns;
}

/* ---- the type ----------------------------------------------------------------------------- */

static int take_texts(TriggerObject *self, PyObject *text, PyObject *conditions)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(conditions); i++) {
        int64_t id = sonde_text_id(text, PyList_GET_ITEM(conditions, i));
        if (id < 0)
            return -1;
        self->texts[i] = (uint32_t)id;
    }
    self->conditions = (uint32_t)PyList_GET_SIZE(conditions);
    return 0;
}

static PyObject *trigger_start(TriggerObject *self, PyObject *Py_UNUSED(none))
{
    if (current == NULL)
        Py_INCREF(self); /* the native thread's reference; stop() gives it back */
    pthread_mutex_lock(&lock);
    if (current == NULL)
        sonde_store_relaxed(&current, self);
    pthread_mutex_unlock(&lock);
    sonde_native_threads_ring();
    Py_RETURN_NONE;
}

static PyObject *trigger_stop(TriggerObject *self, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&lock);
    int was_current = current == self;
    if (was_current)
        sonde_store_relaxed(&current, NULL);
    pthread_mutex_unlock(&lock);
    if (was_current)
        Py_DECREF(self);
    Py_RETURN_NONE;
}

static int check(const TriggerObject *self, unsigned at, unsigned condition)
{
    if (at < SLOTS && condition < self->conditions)
        return 0;
    PyErr_SetString(PyExc_IndexError, "there is no such slot or condition");
    return -1;
}

static PyObject *trigger_arm(TriggerObject *self, PyObject *args)
{
    unsigned at, condition, tid;
    long long since_ns, due_ns;
    if (!PyArg_ParseTuple(args, "IILLI", &at, &condition, &since_ns, &due_ns, &tid) ||
        check(self, at, condition) < 0)
        return NULL;
    slot *one = &self->slots[at];
    sonde_store_release(&one->due_ns, 0);
    one->since_ns = since_ns;
    one->condition = condition;
    one->tid = tid;
    /* Release: the fields before the time that makes them count. */
    sonde_store_release(&one->due_ns, due_ns);
    Py_RETURN_NONE;
}

static PyObject *trigger_disarm(TriggerObject *self, PyObject *number)
{
    unsigned long at = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred() || check(self, at < SLOTS ? (unsigned)at : SLOTS, 0) < 0)
        return NULL;
    sonde_store_release(&self->slots[at].due_ns, 0);
    Py_RETURN_NONE;
}

/* The native thread is asked, and waited for: at most twenty milliseconds, because the stack is to
 * be that of this moment. */
static int fire(TriggerObject *self, uint32_t condition, double value, int is_bare)
{
    slot *one = NULL;
    for (int i = SLOTS; i < SLOTS + AT_ONCE && one == NULL; i++)
        if (sonde_load_acquire(&self->slots[i].due_ns) == 0)
            one = &self->slots[i];
    if (one == NULL)
        return 0; /* others wait already, so all stacks are about to be recorded anyway */
    one->since_ns = 0;
    one->value = value;
    one->condition = condition;
    one->tid = (uint32_t)sonde_find_tid();
    one->is_bare = is_bare;
    /* Release: the fields before the time that makes them count. */
    sonde_store_release(&one->due_ns, 1);
    sonde_native_threads_ring();
    Py_INCREF(self);
    int left = WAITS;
    Py_BEGIN_ALLOW_THREADS
    for (; left > 0 && sonde_load_acquire(&one->due_ns) != 0; left--)
        usleep(WAIT_US);
    Py_END_ALLOW_THREADS
    Py_DECREF(self);
    return left > 0;
}

static PyObject *trigger_fire(TriggerObject *self, PyObject *number)
{
    unsigned long condition = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred() || check(self, 0, condition < CONDITIONS ? (unsigned)condition : CONDITIONS) < 0)
        return NULL;
    return PyBool_FromLong(fire(self, (uint32_t)condition, NAN, 1));
}

/* ---- counters: in C, so that no frame of ours is in the stack ------------------------------- */

static void compare(TriggerObject *self, counter *one, double value)
{
    int was_met = one->is_met;
    one->is_met = one->is_below ? value < one->limit : value > one->limit;
    if (one->is_met && !was_met)
        (void)fire(self, one->condition, value, 0);
}

/* Numbers of other types are left out: they could run code of the program. */
static void see_counter(TriggerObject *self, PyObject *name, PyObject *value)
{
    double number;
    PyObject *found = PyDict_GetItemWithError(self->counters, name);
    if (found == NULL || !(PyFloat_CheckExact(value) || PyLong_CheckExact(value) || PyBool_Check(value)))
        return;
    number = PyFloat_AsDouble(value);
    if (PyErr_Occurred())
        return; /* larger than any double */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(found); i++)
        compare(self, &self->watched[PyLong_AsLong(PyTuple_GET_ITEM(found, i))], number);
}

static PyObject *trigger_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    TriggerObject *self = (TriggerObject *)callable;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    if (n == 6 && PyUnicode_Check(args[0]) && PyUnicode_CompareWithASCIIString(args[0], "count") == 0) {
        see_counter(self, args[2], args[5]);
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (self->other == NULL)
        Py_RETURN_NONE;
    return PyObject_Vectorcall(self->other, args, (size_t)n, kwnames);
}

static PyObject *trigger_watch_counter(TriggerObject *self, PyObject *args)
{
    PyObject *name;
    unsigned condition;
    counter one = {0};
    int is_below;
    if (!PyArg_ParseTuple(args, "IUdp", &condition, &name, &one.limit, &is_below) ||
        check(self, 0, condition) < 0)
        return NULL;
    PyObject *known = PyDict_GetItemWithError(self->counters, name);
    PyObject *more = Py_BuildValue("(I)", self->watched_n);
    PyObject *both = more == NULL || known == NULL ? Py_XNewRef(more) : PySequence_Concat(known, more);
    int status = both == NULL ? -1 : PyDict_SetItem(self->counters, name, both);
    Py_XDECREF(more);
    Py_XDECREF(both);
    if (status < 0)
        return NULL;
    one.condition = condition;
    one.is_below = (uint8_t)is_below;
    self->watched[self->watched_n++] = one; /* as many as there are conditions, at most */
    Py_RETURN_NONE;
}

static PyObject *trigger_watch_still(TriggerObject *self, PyObject *args)
{
    unsigned condition;
    long long limit_ns;
    if (!PyArg_ParseTuple(args, "IL", &condition, &limit_ns) || check(self, 0, condition) < 0)
        return NULL;
    sonde_store_relaxed(&self->still_limit_ns, limit_ns);
    sonde_store_relaxed(&self->still, limit_ns ? condition + 1 : 0);
    Py_RETURN_NONE;
}

static PyObject *trigger_watch_memory(TriggerObject *self, PyObject *args)
{
    unsigned condition;
    double limit;
    if (!PyArg_ParseTuple(args, "Id", &condition, &limit) || check(self, 0, condition) < 0)
        return NULL;
    self->memory_limit = limit;
    self->memory = condition + 1;
    Py_RETURN_NONE;
}

static PyObject *trigger_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *writer, *text, *conditions, *other;
    unsigned int most;
    static char *names[] = {"writer", "text", "conditions", "most", "other", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!IO", names, &sonde_WriterType, &writer,
                                     &sonde_TextType, &text, &PyList_Type, &conditions, &most, &other))
        return NULL;
    if (PyList_GET_SIZE(conditions) > CONDITIONS)
        return PyErr_Format(PyExc_ValueError, "at most %d conditions", CONDITIONS);
    TriggerObject *self = (TriggerObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = trigger_call;
    self->most = most;
    self->counters = PyDict_New();
    self->other = other == Py_None ? NULL : Py_NewRef(other);
    if (self->counters != NULL && sonde_writer_open(writer) == 0)
        self->ring = sonde_writer_ring(writer, SONDE_TRIGGER_KINDS, &self->map);
    if (self->ring == NULL || take_texts(self, text, conditions) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int trigger_traverse(TriggerObject *self, visitproc visit, void *arg)
{
    Py_VISIT(self->other);
    return 0;
}

static int trigger_clear(TriggerObject *self)
{
    Py_CLEAR(self->other);
    return 0;
}

static void trigger_dealloc(TriggerObject *self)
{
    PyObject_GC_UnTrack(self);
    (void)trigger_clear(self);
    Py_CLEAR(self->counters);
    Py_CLEAR(self->map);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef trigger_methods[] = {
    {"start", (PyCFunction)trigger_start, METH_NOARGS, "Have the native thread watch the conditions."},
    {"stop", (PyCFunction)trigger_stop, METH_NOARGS, "Watch nothing any more."},
    {"arm", (PyCFunction)trigger_arm, METH_VARARGS,
     "arm(slot, condition, since_ns, due_ns, thread): the condition is met at that time, unless\n"
     "disarm() comes first."},
    {"disarm", (PyCFunction)trigger_disarm, METH_O, "disarm(slot)"},
    {"fire", (PyCFunction)trigger_fire, METH_O,
     "fire(condition): the condition is met now, in this thread, whose own stack says nothing. Returns\n"
     "whether it has been recorded already."},
    {"watch_counter", (PyCFunction)trigger_watch_counter, METH_VARARGS,
     "watch_counter(condition, name, limit, below): met when the counter passes the limit. Before\n"
     "start(), once for each condition."},
    {"watch_still", (PyCFunction)trigger_watch_still, METH_VARARGS,
     "watch_still(condition, limit_ns): met when no stack has changed for so long; 0: never. Before\n"
     "start(), or to change the limit."},
    {"watch_memory", (PyCFunction)trigger_watch_memory, METH_VARARGS,
     "watch_memory(condition, bytes): met once the process has had more. Before start()."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject sonde_TriggerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Trigger",
    .tp_basicsize = sizeof(TriggerObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "Trigger(writer, text, conditions, most, other): writes a row with a stack whenever one of\n"
              "these conditions is met, at most so many in an hour. Call it with every event; those that\n"
              "are not of counters are passed on to `other`.",
    .tp_new = trigger_new,
    .tp_dealloc = (destructor)trigger_dealloc,
    .tp_traverse = (traverseproc)trigger_traverse,
    .tp_clear = (inquiry)trigger_clear,
    .tp_vectorcall_offset = offsetof(TriggerObject, call),
    .tp_call = PyVectorcall_Call,
    .tp_methods = trigger_methods,
};
