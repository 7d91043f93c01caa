/* The source `operator`: every call of torch's operators, as rows and as exact sums.
 *
 * Torch calls an observer when an operator begins and ends, in whatever thread runs it, with or
 * without the GIL. Torch then takes about a microsecond longer for each operator, so the observer
 * is there only while operators are wanted. */
#include "torch/torch.h"
#include "torch/record_function.h"
#include "kernel/fork.h"
#include "kernel/thread.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { DEEP = 64 };      /* operators inside operators; deeper ones are not recorded */
enum { NAMES = 1 << 13 }; /* room for names; half of it is used at most */

#define KINDS "qqqqtH?"
typedef struct {
    int64_t t_ns, dur_ns, self_ns, thread;
    uint32_t op;
    uint16_t depth;
    uint8_t backward;
} operator_row;

_Static_assert(sizeof(operator_row) == 40, "operator layout");

typedef struct {
    char *name; /* NULL: the place is free */
    uint64_t count;
    int64_t total_ns, min_ns, max_ns;
    uint32_t hash, text;
} operator_sum;

typedef struct {
    const void *function; /* torch's own object, by which the end of a call finds its beginning */
    int64_t begin_ns, inner_ns;
    int is_backward;
} operator_call;

/* The calls in progress in this thread. */
static __thread struct {
    operator_call calls[DEEP];
    uint32_t depth, epoch;
} here;

static struct {
    uint64_t (*add)(sonde_observer);
    void (*remove)(uint64_t);
    const char *(*name)(const void *);
    int (*graph_task)(void);
    uint64_t handle;
    int is_added;   /* torch calls us */
    int is_wanted;  /* guarded by the GIL, as is the next: the gate is open */
    int is_started;
    uint32_t epoch; /* atomic: counts the times that the gate was opened */
    uint32_t is_on; /* atomic: operators that begin now are recorded */
    pthread_mutex_t lock; /* guards what follows */
    PyObject *ring_map, *text, *page_map; /* NULL: there is nothing to write to */
    sonde_ring_handle ring;
    const sonde_intern_handle *texts;
    const uint32_t *on; /* in the control page: are rows wanted? */
    int64_t closed_ns;  /* when the gate was closed; 0: it is open */
    operator_sum *sums;
    uint32_t sums_n;
} seen = {.is_wanted = 1, .lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- sums ------------------------------------------------------------------------------- */

static uint32_t find_hash(const char *name)
{
    uint32_t hash = UINT32_C(2166136261);
    for (; *name != 0; name++)
        hash = (hash ^ (uint8_t)*name) * UINT32_C(16777619);
    return hash;
}

/* Return the sum of a name, or NULL if there would be more than `most` names. */
static operator_sum *find_sum(const char *name, uint32_t most)
{
    uint32_t hash = find_hash(name);
    for (uint32_t at = hash;; at++) {
        operator_sum *sum = &seen.sums[at & (NAMES - 1)];
        if (sum->name == NULL) {
            if (seen.sums_n >= most || (sum->name = strdup(name)) == NULL)
                return NULL;
            seen.sums_n++;
            sum->hash = hash;
            return sum;
        }
        if (sum->hash == hash && strcmp(sum->name, name) == 0)
            return sum;
    }
}

static operator_sum *add_to_sum(const char *name, int64_t dur_ns)
{
    operator_sum *sum = find_sum(name, NAMES / 2);
    /* The program can make up names without end; those that find no room are one. */
    if (sum == NULL && (sum = find_sum("<other>", NAMES / 2 + 1)) == NULL)
        return NULL;
    if (sum->count == 0 || dur_ns < sum->min_ns)
        sum->min_ns = dur_ns;
    if (sum->count == 0 || dur_ns > sum->max_ns)
        sum->max_ns = dur_ns;
    sum->count++;
    sum->total_ns += dur_ns;
    return sum;
}

static void clear_sums(int with_texts)
{
    for (uint32_t at = 0; seen.sums != NULL && at < NAMES; at++) {
        operator_sum *sum = &seen.sums[at];
        sum->count = 0;
        sum->total_ns = sum->min_ns = sum->max_ns = 0;
        if (with_texts)
            sum->text = 0;
    }
}

/* ---- what torch calls --------------------------------------------------------------------- */

__attribute__((visibility("hidden"))) void sonde_operator_begins(const void *function);

void sonde_operator_begins(const void *function)
{
    /* Acquire: whoever sees that it is on sees the epoch, and what was found in torch. */
    if (!sonde_load_acquire(&seen.is_on))
        return;
    uint32_t epoch = sonde_load_relaxed(&seen.epoch);
    if (here.epoch != epoch) {
        here.epoch = epoch;
        here.depth = 0;
    }
    if (here.depth < DEEP)
        here.calls[here.depth] =
            (operator_call){function, sonde_clock_ns(), 0, seen.graph_task != NULL && seen.graph_task() >= 0};
    here.depth++;
}

SONDE_START_CALLBACK(sonde_operator_start, sonde_operator_begins)

/* Write a call that has ended; the lock is held. */
static void write_call(const operator_call *call, const char *name, int64_t end_ns, uint32_t depth)
{
    if (seen.closed_ns != 0 && end_ns > seen.closed_ns)
        end_ns = seen.closed_ns;
    int64_t dur_ns = end_ns - call->begin_ns;
    operator_sum *sum = dur_ns < 0 ? NULL : add_to_sum(name, dur_ns);
    if (sum == NULL)
        return;
    if (sum->text == 0)
        sum->text = sonde_intern_put_within(seen.texts, sum->name, (uint32_t)strlen(sum->name), SONDE_TEXTS_NAMES);
    int64_t self_ns = dur_ns - call->inner_ns;
    operator_row row = {.t_ns = call->begin_ns, .dur_ns = dur_ns, .self_ns = self_ns < 0 ? 0 : self_ns,
                        .thread = sonde_find_tid(), .op = sum->text, .depth = (uint16_t)depth,
                        .backward = (uint8_t)call->is_backward};
    uint64_t words[sizeof row / 8];
    memcpy(words, &row, sizeof words);
    (void)sonde_ring_append(&seen.ring, words, 0); /* a drop is counted there */
}

static void end_operator(const void *function, void *Py_UNUSED(context))
{
    if (here.depth == 0 || here.epoch != sonde_load_relaxed(&seen.epoch))
        return; /* it began before the gate was opened */
    int64_t end_ns = sonde_clock_ns();
    uint32_t at = here.depth < DEEP ? here.depth : DEEP;
    while (at > 0 && here.calls[at - 1].function != function)
        at--;
    if (at == 0) { /* too deep, or it began in another thread */
        here.depth -= here.depth > DEEP;
        return;
    }
    operator_call call = here.calls[--at];
    here.depth = at; /* whatever began in it has ended, or ends in another thread */
    if (at > 0)
        here.calls[at - 1].inner_ns += end_ns - call.begin_ns;
    const char *name = seen.name(function);
    if (name == NULL || strncmp(name, "profiler::", 10) == 0)
        return; /* torch's own profiler is no work of the program */
    pthread_mutex_lock(&seen.lock);
    if (seen.ring_map != NULL && sonde_load_relaxed(seen.on))
        write_call(&call, name, end_ns, at);
    pthread_mutex_unlock(&seen.lock);
}

/* ---- on and off ------------------------------------------------------------------------------ */

static void open_gate(void)
{
    pthread_mutex_lock(&seen.lock);
    seen.closed_ns = 0;
    pthread_mutex_unlock(&seen.lock);
    sonde_add_relaxed(&seen.epoch, 1u);
    /* Release: see sonde_operator_begins. */
    sonde_store_release(&seen.is_on, 1u);
    if (seen.is_added)
        return; /* it was added by the process that this one was forked from */
    sonde_observer ours = {.start = (void *)sonde_operator_start, .end = (void *)end_operator, .probability = 1.0};
    ours.scopes_and_needs[SONDE_SCOPE_FUNCTION] = ours.scopes_and_needs[SONDE_SCOPE_BACKWARD] =
        ours.scopes_and_needs[SONDE_SCOPE_SCRIPT] = 1;
    seen.handle = seen.add(ours);
    seen.is_added = 1;
}

static void close_gate(void)
{
    pthread_mutex_lock(&seen.lock);
    seen.closed_ns = sonde_clock_ns();
    pthread_mutex_unlock(&seen.lock);
    sonde_store_release(&seen.is_on, 0u);
    seen.remove(seen.handle);
    seen.is_added = 0;
}

static void update(void)
{
    int is_due = seen.is_started && seen.is_wanted, is_on = (int)sonde_load_relaxed(&seen.is_on);
    if (is_due && !is_on)
        open_gate();
    else if (!is_due && is_on)
        close_gate();
}

static int find_functions(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL) {
        PyErr_Format(PyExc_OSError, "%s is not loaded", path);
        return -1;
    }
    seen.add = (uint64_t(*)(sonde_observer))dlsym(library, SONDE_ADD_OBSERVER);
    seen.remove = (void (*)(uint64_t))dlsym(library, SONDE_REMOVE_OBSERVER);
    seen.name = (const char *(*)(const void *))dlsym(library, SONDE_OBSERVED_NAME);
    seen.graph_task = (int (*)(void))dlsym(library, "_ZN5torch8autograd25get_current_graph_task_idEv");
    if (seen.add != NULL && seen.remove != NULL && seen.name != NULL)
        return 0;
    PyErr_SetString(PyExc_OSError, "torch does not tell the names of its operators");
    return -1;
}

/* Have rows go nowhere from now on. */
static void release(void)
{
    pthread_mutex_lock(&seen.lock);
    PyObject *held[] = {seen.ring_map, seen.text, seen.page_map};
    seen.ring_map = seen.text = seen.page_map = NULL;
    pthread_mutex_unlock(&seen.lock);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        Py_XDECREF(held[i]);
}

static PyObject *operators_start(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *writer, *text, *page;
    const char *path;
    if (!PyArg_ParseTuple(args, "O!O!O!s", &sonde_WriterType, &writer, &sonde_TextType, &text, &sonde_MapType,
                          &page, &path))
        return NULL;
    const sonde_control *control = sonde_map_memory(page, 0);
    if (control == NULL || find_functions(path) < 0 || sonde_writer_open(writer) < 0)
        return NULL;
    if (seen.sums == NULL && (seen.sums = calloc(NAMES, sizeof *seen.sums)) == NULL)
        return PyErr_NoMemory();
    sonde_ring_handle ring;
    PyObject *map = sonde_writer_ring(writer, KINDS, &ring);
    if (map == NULL)
        return NULL;
    release();
    pthread_mutex_lock(&seen.lock);
    clear_sums(1);
    seen.ring = ring;
    seen.texts = sonde_text_table(text);
    seen.on = &control->on;
    seen.ring_map = map;
    seen.text = Py_NewRef(text);
    seen.page_map = Py_NewRef(page);
    pthread_mutex_unlock(&seen.lock);
    seen.is_started = 1;
    update();
    Py_RETURN_NONE;
}

static PyObject *operators_stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    seen.is_started = 0;
    update();
    release();
    Py_RETURN_NONE;
}

static PyObject *operators_gate(PyObject *Py_UNUSED(module), PyObject *on)
{
    int is_wanted = PyObject_IsTrue(on);
    if (is_wanted < 0)
        return NULL;
    seen.is_wanted = is_wanted;
    update();
    Py_RETURN_NONE;
}

/* ---- what Python reads ------------------------------------------------------------------------ */

static PyObject *operators_reset(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&seen.lock);
    clear_sums(0);
    pthread_mutex_unlock(&seen.lock);
    Py_RETURN_NONE;
}

/* Return a copy, because the lock must not be held while Python makes objects. */
static operator_sum *copy_sums(void)
{
    operator_sum *copy = seen.sums == NULL ? NULL : malloc(NAMES * sizeof *copy);
    if (copy == NULL)
        return NULL;
    pthread_mutex_lock(&seen.lock);
    memcpy(copy, seen.sums, NAMES * sizeof *copy); /* names are never freed */
    pthread_mutex_unlock(&seen.lock);
    return copy;
}

static PyObject *operators_summary(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    PyObject *found = PyList_New(0);
    operator_sum *sums = found == NULL ? NULL : copy_sums();
    for (uint32_t at = 0; sums != NULL && found != NULL && at < NAMES; at++) {
        const operator_sum *sum = &sums[at];
        if (sum->count == 0)
            continue;
        PyObject *name = PyUnicode_DecodeUTF8(sum->name, (Py_ssize_t)strlen(sum->name), "backslashreplace");
        PyObject *row = name == NULL ? NULL
                                     : Py_BuildValue("NKLLL", name, (unsigned long long)sum->count,
                                                     (long long)sum->total_ns, (long long)sum->min_ns,
                                                     (long long)sum->max_ns);
        if (row == NULL || PyList_Append(found, row) < 0)
            Py_CLEAR(found);
        Py_XDECREF(row);
    }
    free(sums);
    return found;
}

static void forget_in_child(void)
{
    /* Torch goes on calling us; we ignore it until we are started again. */
    SONDE_RESET(seen.lock, PTHREAD_MUTEX_INITIALIZER);
    if (!seen.is_started)
        return;
    seen.is_on = 0;
    seen.is_started = 0;
    seen.epoch++; /* the calls in progress are the parent's */
    clear_sums(1);
}

SONDE_IN_CHILD(forget_in_child)

PyMethodDef sonde_operators_methods[] = {
    {"operators_start", operators_start, METH_VARARGS,
     "operators_start(writer, text, page, libtorch_cpu): have each call of an operator written, while the gate\n"
     "is open."},
    {"operators_stop", operators_stop, METH_NOARGS, "Write no more rows of operators."},
    {"operators_gate", operators_gate, METH_O, "operators_gate(on): record operators only while it is on."},
    {"operators_reset", operators_reset, METH_NOARGS, "Reset the sums of operators."},
    {"operators_summary", operators_summary, METH_NOARGS,
     "Return (name, count, total_ns, min_ns, max_ns) of each operator."},
    {NULL, NULL, 0, NULL},
};
