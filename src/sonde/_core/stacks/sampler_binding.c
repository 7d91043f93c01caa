/* Sampler: the sampler as a Python object, and what the native thread does for it. */
#define _GNU_SOURCE 1
#include "stacks/frame_key.h"
#include "stacks/helper_thread.h"
#include "stacks/lock_object.h"
#include "stacks/sampler.h"
#include "stacks/thread_names.h"
#include "stacks/trigger.h"
#include "kernel/fatal_signal.h"
#include "kernel/filter.h"
#include "kernel/fork.h"
#include "kernel/map_guard.h"
#include "kernel/read_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define RENEW_NS 1000000000 /* between two looks at the handlers of faults */
#define NAME_NS 50000000    /* a new thread waits at least this long for its name */
#define NAMES_NS 1000000000 /* between two requests for names */
#define TASKS_NS 500000000  /* between two looks at the tasks of asyncio */
#define MET_TRIES 20        /* for the stack of a condition that is met: it may move while it is read */

enum { WANT_NAMES = 1, WANT_INSPECTION = 2, WANT_STACKS = 4, WANT_TASKS = 8, WANT_REPORT = 16 };
typedef struct {
    PyObject_HEAD
    sonde_sampler sampler;
    PyObject *maps[8]; /* keep what the sampler writes to mapped */
    PyObject *text;
    PyObject *inspect; /* called with the GIL in the helper thread */
    int is_open;
    uint32_t forks; /* sonde_forks when it was started: what a parent's points to is not ours */
    int64_t named_ns, unnamed_ns;
    int sees_tasks;
    int64_t tasks_ns; /* when tasks were last looked at */
    int is_refusal_told; /* that the kernel does not tell what threads wait for */
    uint32_t lost_told;  /* signals of faults that the program has taken from us */
    int64_t renewed_ns;  /* when we last looked for those */
} SamplerObject;

SONDE_CHANGED_IN_CHILD static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `active` and its sampler */
SONDE_CHANGED_IN_CHILD static SamplerObject *active;

static void abandon_in_child(void)
{
    /* The native thread may have been in the middle of anything. It does not exist here, so
     * nothing that it touched can be used, or even freed. */
    active = NULL;
    pthread_mutex_init(&lock, NULL);
#if SONDE_HAS_FRAMES
    sonde_codes_forget();
#endif
}

SONDE_IN_CHILD(abandon_in_child)

static int find_wants(SamplerObject *self, int64_t now_ns, int is_inspection)
{
    int wants = is_inspection ? WANT_INSPECTION : 0;
    if (self->sampler.wants_stacks)
        wants |= WANT_STACKS;
    if (self->sampler.unnamed == 0)
        self->unnamed_ns = 0;
    else if (self->unnamed_ns == 0)
        self->unnamed_ns = now_ns;
    else if (now_ns - self->unnamed_ns > NAME_NS && now_ns - self->named_ns > NAMES_NS)
        wants |= WANT_NAMES;
    if (self->sees_tasks && now_ns - self->tasks_ns > TASKS_NS && sonde_loop_is_any(&self->sampler))
        wants |= WANT_TASKS;
    if (now_ns - self->renewed_ns > RENEW_NS && !sonde_had_filter()) {
        sonde_fatal_renew(sonde_guard_ends());
        self->renewed_ns = now_ns;
    }
    if ((!self->is_refusal_told && sonde_wait_refusal()) || (sonde_fatal_lost() & ~self->lost_told))
        wants |= WANT_REPORT;
    return wants;
}

static int64_t take_turn(sonde_control *page)
{
    int64_t due_ns = INT64_MAX;
    pthread_mutex_lock(&lock);
    SamplerObject *self = active;
    if (self != NULL) {
        uint64_t asked = sonde_load_acquire(&page->sample_asked);
        int everyone = asked != sonde_load_acquire(&page->sampled);
        int64_t begin_ns = sonde_clock_ns();
        int is_met = sonde_triggers_due(&self->sampler, begin_ns);
        due_ns = sonde_sampler_turn(&self->sampler, everyone || is_met);
        for (int i = 0; is_met && i < MET_TRIES && !sonde_triggers_seen(&self->sampler, begin_ns); i++)
            due_ns = sonde_sampler_turn(&self->sampler, 1);
        if (is_met)
            sonde_triggers_write(&self->sampler, sonde_clock_ns());
        int64_t next_ns = sonde_triggers_next(&self->sampler);
        due_ns = next_ns < due_ns ? next_ns : due_ns;
        /* Release: the rows are written before the number that says they are there. */
        if (everyone && !self->sampler.is_slow)
            sonde_store_release(&page->sampled, asked);
        int is_inspection = sonde_load_acquire(&page->inspect_asked) !=
                            sonde_load_acquire(&page->inspected);
        int64_t now_ns = sonde_clock_ns();
        int wants = find_wants(self, now_ns, is_inspection);
        if (wants && sonde_helper_ask(self->inspect, wants, &self->sampler.helper_tid)) {
            self->sampler.wants_stacks = 0;
            if (wants & WANT_TASKS)
                self->tasks_ns = now_ns;
            self->is_refusal_told |= sonde_wait_refusal() != 0;
            self->lost_told |= sonde_fatal_lost();
            if (wants & WANT_NAMES) {
                self->named_ns = now_ns;
                self->sampler.unnamed = 0;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    return due_ns;
}

static void rest(void)
{
    pthread_mutex_lock(&lock);
    if (active != NULL)
        sonde_sampler_rest(&active->sampler);
    pthread_mutex_unlock(&lock);
}

static const sonde_native_work work = {take_turn, rest};

/* ---- the type ---------------------------------------------------------------------- */

static int open_nodes(SamplerObject *self, PyObject *map)
{
    void *mem = sonde_map_memory(map, 1);
    if (mem == NULL)
        return -1;
    int status = sonde_nodes_open(&self->sampler.nodes, mem, ((MapObject *)map)->bytes);
    if (status < 0) {
        sonde_raise(status, "stack table");
        return -1;
    }
    self->maps[6] = Py_NewRef(map);
    return 0;
}

static int open_page(SamplerObject *self, PyObject *map)
{
    sonde_control *page = sonde_map_memory(map, 1);
    if (page == NULL)
        return -1;
    int status = sonde_control_verify(page, ((MapObject *)map)->bytes);
    if (status < 0) {
        sonde_raise(status, "control page");
        return -1;
    }
    self->sampler.page = page;
    self->maps[7] = Py_NewRef(map);
    return 0;
}

static int open_rings(SamplerObject *self, PyObject *const writers[6])
{
    sonde_sampler *s = &self->sampler;
    sonde_ring_handle *rings[] = {&s->samples, &s->thread_rows, &s->sampling, &s->holds, &s->loops,
                                  &s->lock_waits};
    static const char *const kinds[] = {SONDE_SAMPLE_KINDS, SONDE_THREAD_KINDS, SONDE_SAMPLING_KINDS,
                                        SONDE_HOLD_KINDS, SONDE_LOOP_KINDS, SONDE_LOCK_KINDS};
    for (int i = 0; i < 6; i++)
        if ((self->maps[i] = sonde_writer_ring(writers[i], kinds[i], rings[i])) == NULL)
            return -1;
    return 0;
}

static PyObject *sampler_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *writers[6], *text, *nodes, *page, *inspect;
    const char *folder;
    int is_slow = 0;
    PyTypeObject *writer = &sonde_WriterType;
    if (!PyArg_ParseTuple(args, "(O!O!O!O!O!O!)O!O!O!yO|p", writer, &writers[0], writer, &writers[1], writer,
                          &writers[2], writer, &writers[3], writer, &writers[4], writer, &writers[5], &sonde_TextType, &text,
                          &sonde_MapType, &nodes, &sonde_MapType, &page, &folder, &inspect, &is_slow))
        return NULL;
    SamplerObject *self = (SamplerObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    sonde_sampler *s = &self->sampler;
    s->is_slow = is_slow;
    s->folder = strdup(folder);
    if (s->folder == NULL)
        PyErr_NoMemory();
    if (s->folder == NULL || open_rings(self, writers) < 0 || open_nodes(self, nodes) < 0 || open_page(self, page) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    s->text = sonde_text_table(text);
    self->text = Py_NewRef(text);
    self->inspect = Py_NewRef(inspect);
    return (PyObject *)self;
}

static PyObject *sampler_start(SamplerObject *self, PyObject *args)
{
    long long interval_ns, since_ns = 0;
    if (!PyArg_ParseTuple(args, "L|L", &interval_ns, &since_ns))
        return NULL;
    if (interval_ns < 1000 || self->is_open || active != NULL) {
        PyErr_SetString(PyExc_ValueError, "one sampler at a time, with an interval of at least a microsecond");
        return NULL;
    }
    int status = 0;
    if (!self->sampler.is_slow)
        (void)sonde_memory_open();
    const char *mismatch = self->sampler.is_slow ? NULL : sonde_layout_mismatch();
    if (mismatch != NULL)
        return PyErr_Format(PyExc_OSError, "this Python differs from the one that sonde was compiled for (%s)",
                            mismatch);
#if SONDE_HAS_FRAMES
    if (!self->sampler.is_slow)
        status = sonde_frames_prepare();
#endif
#if SONDE_HAS_LOCKS
    self->sampler.knows_locks = !self->sampler.is_slow && sonde_locks_prepare() == 0;
#endif
    if (status == 0)
        status = sonde_sampler_open(&self->sampler);
    if (status < 0)
        return sonde_raise(status, "sampler");
    self->sampler.since_ns = since_ns;
    sonde_sampler_set_interval(&self->sampler, interval_ns);
    sonde_helper_follow_forks();
    self->is_open = 1;
    self->forks = sonde_forks;
    Py_INCREF(self); /* the native thread's reference; stop() gives it back */
    pthread_mutex_lock(&lock);
    active = self;
    pthread_mutex_unlock(&lock);
    sonde_native_thread_serve(&work);
    sonde_native_threads_ring();
    Py_RETURN_NONE;
}

static void leave(SamplerObject *self)
{
    pthread_mutex_lock(&lock);
    int was_active = active == self;
    active = was_active ? NULL : active;
    pthread_mutex_unlock(&lock);
    if (was_active && sonde_helper_join() < 0)
        Py_INCREF(self); /* the helper may still use this object */
}

static PyObject *sampler_stop(SamplerObject *self, PyObject *Py_UNUSED(none))
{
    if (!self->is_open)
        Py_RETURN_NONE;
    self->is_open = 0;
    if (self->forks == sonde_forks) {
        leave(self);
        sonde_sampler_close(&self->sampler);
        sonde_memory_close();
#if SONDE_HAS_FRAMES
        sonde_codes_clear();
#endif
    }
    Py_DECREF(self);
    Py_RETURN_NONE;
}

static PyObject *sampler_see_native(SamplerObject *self, PyObject *map)
{
    pthread_mutex_lock(&lock);
    int status = sonde_native_open(&self->sampler.native, map);
    pthread_mutex_unlock(&lock);
    return status < 0 ? sonde_raise(status, "native frames") : Py_NewRef(Py_None);
}

static PyObject *sampler_see_crash(SamplerObject *self, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&lock);
    self->sampler.crash.is_wanted = 1;
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

static PyObject *sampler_set_interval(SamplerObject *self, PyObject *args)
{
    long long interval_ns;
    if (!PyArg_ParseTuple(args, "L", &interval_ns))
        return NULL;
    pthread_mutex_lock(&lock);
    if (active == self && interval_ns >= 1000)
        sonde_sampler_set_interval(&self->sampler, interval_ns);
    pthread_mutex_unlock(&lock);
    sonde_native_threads_ring();
    Py_RETURN_NONE;
}

static PyObject *sampler_name(SamplerObject *self, PyObject *args)
{
    PyObject *names; /* the caller's own: nobody else changes it */
    if (!PyArg_ParseTuple(args, "O!", &PyDict_Type, &names))
        return NULL;
    /* First of all, because nothing of Python's may be called with the lock held: without a GIL it could
     * wait for a thread that waits for the lock. */
    Py_ssize_t n;
    sonde_thread_name *found = sonde_thread_names_make(names, self->text, &n);
    if (found == NULL)
        return NULL;
    pthread_mutex_lock(&lock);
    if (active == self)
        sonde_thread_names_give(&self->sampler, found, n);
    pthread_mutex_unlock(&lock);
    PyMem_Free(found);
    Py_RETURN_NONE;
}

static int take_stack(SamplerObject *self, PyObject *entry)
{
    static sonde_frame_key keys[SONDE_MAX_DEPTH]; /* guarded by the GIL */
    unsigned int tid;
    PyObject *frames;
    int gil;
    if (!PyArg_ParseTuple(entry, "IpO!", &tid, &gil, &PyList_Type, &frames))
        return -1;
    int n = sonde_frame_keys_make(self->text, frames, keys);
    if (n < 0)
        return -1;
    pthread_mutex_lock(&lock);
    if (active == self)
        sonde_sampler_take(&self->sampler, tid, keys, n, gil);
    pthread_mutex_unlock(&lock);
    return 0;
}

static PyObject *sampler_take(SamplerObject *self, PyObject *args)
{
    PyObject *stacks;
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "O!K", &PyList_Type, &stacks, &number))
        return NULL;
    int64_t begin_ns = sonde_clock_ns();
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(stacks); i++)
        if (take_stack(self, PyList_GET_ITEM(stacks, i)) < 0)
            return NULL;
    pthread_mutex_lock(&lock);
    if (active == self) {
        sonde_sampler_taken(&self->sampler, begin_ns);
        sonde_store_release(&self->sampler.page->sampled, number);
    }
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

static PyObject *sampler_put(SamplerObject *self, PyObject *args)
{
    static sonde_frame_key keys[SONDE_MAX_DEPTH]; /* guarded by the GIL */
    PyObject *frames;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &frames))
        return NULL;
    int n = sonde_frame_keys_make(self->text, frames, keys);
    if (n < 0)
        return NULL;
    pthread_mutex_lock(&lock);
    uint64_t stack = active == self ? sonde_sampler_put(&self->sampler, keys, n) : 0;
    pthread_mutex_unlock(&lock);
    return stack ? PyLong_FromLongLong((int64_t)stack) : Py_NewRef(Py_None);
}

static PyObject *sampler_see_tasks(SamplerObject *self, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&lock);
    self->sees_tasks = 1;
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

static PyObject *sampler_pause(SamplerObject *Py_UNUSED(self), PyObject *us)
{
    int pause_us = (int)PyLong_AsLong(us);
    if (pause_us == -1 && PyErr_Occurred())
        return NULL;
    sonde_helper_pause(pause_us);
    Py_RETURN_NONE;
}

static PyObject *sampler_asked(SamplerObject *self, PyObject *Py_UNUSED(none))
{
    const sonde_control *page = self->sampler.page;
    return Py_BuildValue("KK", (unsigned long long)sonde_load_acquire(&page->sample_asked),
                         (unsigned long long)sonde_load_acquire(&page->inspect_asked));
}

static PyObject *sampler_refusal(SamplerObject *Py_UNUSED(self), PyObject *Py_UNUSED(none))
{
    return PyLong_FromLong(sonde_wait_refusal());
}

static PyObject *sampler_inspected(SamplerObject *self, PyObject *args)
{
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "K", &number))
        return NULL;
    sonde_store_release(&self->sampler.page->inspected, number);
    Py_RETURN_NONE;
}

static void sampler_dealloc(SamplerObject *self)
{
    for (size_t i = 0; i < sizeof self->maps / sizeof *self->maps; i++)
        Py_CLEAR(self->maps[i]);
    Py_CLEAR(self->text);
    Py_CLEAR(self->inspect);
    free(self->sampler.folder);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef sampler_methods[] = {
    {"start", (PyCFunction)sampler_start, METH_VARARGS,
     "start(interval_ns, since_ns=0): from now on take samples; the first ones stand for the time since then."},
    {"stop", (PyCFunction)sampler_stop, METH_NOARGS, "Take no more samples, and write the last ones."},
    {"see_crash", (PyCFunction)sampler_see_crash, METH_NOARGS,
     "see_crash(): leave the native stacks of all threads at a fault; see crash_stacks.h."},
    {"see_native", (PyCFunction)sampler_see_native, METH_O, "see_native(map): add native frames; see machine_code.h."},
    {"set_interval", (PyCFunction)sampler_set_interval, METH_VARARGS, "set_interval(interval_ns): sample this often from now on."},
    {"name", (PyCFunction)sampler_name, METH_VARARGS, "name({tid: name}): set the names of threads."},
    {"take", (PyCFunction)sampler_take, METH_VARARGS,
     "take([(tid, gil, [(func, file, line, first line), …]), …], number): take the stacks of all threads, root\n"
     "first, that somebody else has read; `number` is that of the request that they answer."},
    {"put", (PyCFunction)sampler_put, METH_VARARGS,
     "put([(func, file, line, first line), …]): return the id of a stack, root first, for python.frame; None if\n"
     "there is no room for it."},
    {"see_tasks", (PyCFunction)sampler_see_tasks, METH_NOARGS, "While an event loop runs, ask for a look at its tasks."},
    {"pause", (PyCFunction)sampler_pause, METH_O, "pause(us): within inspect(), wait so long, or until a fork."},
    {"asked", (PyCFunction)sampler_asked, METH_NOARGS, "Return the numbers of the newest requests for a sample and for an inspection."},
    {"refusal", (PyCFunction)sampler_refusal, METH_NOARGS, "Return why nobody knows what threads wait for, as an errno; 0: it is known."},
    {"inspected", (PyCFunction)sampler_inspected, METH_VARARGS, "inspected(number): say that this inspection is written."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject sonde_SamplerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Sampler",
    .tp_basicsize = sizeof(SamplerObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Sampler((samples, threads, sampling, holds, loops, lock_waits), text, nodes, page, folder, inspect,\n"
              "slow=False): samples the stacks of all threads, in the native thread; `inspect(wants)` is\n"
              "called with the GIL for what only Python knows.",
    .tp_new = sampler_new,
    .tp_dealloc = (destructor)sampler_dealloc,
    .tp_methods = sampler_methods,
};
