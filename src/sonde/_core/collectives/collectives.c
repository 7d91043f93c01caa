/* Collectives: the thread that writes their rows, and what the program tells it. */
#include "collectives/collectives.h"
#include "kernel/fork.h"
#include "kernel/thread.h"
#include "torch/step_end.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TURN_NS 500000000       /* between two looks, while works wait for their rows */
#define IDLE_NS 3600000000000
enum { RELAXED = 2 };

static void *work(void *Py_UNUSED(arg))
{
    int mode = RELAXED;
    /* While the program records a CUDA graph, a question about an event, asked by a thread
     * that has not said this, would spoil it. */
    if (sonde_all.set_mode != NULL)
        (void)sonde_all.set_mode(&mode);
    int is_waiting = 0;
    while (!sonde_load_acquire(&sonde_all.leave)) {
        uint32_t bell = sonde_load_acquire(&sonde_all.bell);
        /* Whatever comes from here on rings. */
        is_waiting = sonde_collective_turn(0);
        /* Where works are not seen nobody rings. */
        is_waiting |= !sonde_all.is_observed;
        sonde_wait(&sonde_all.bell, bell, is_waiting ? TURN_NS : IDLE_NS);
    }
    (void)sonde_collective_turn(1);
    return NULL;
}

/* The first work after a while: wake the thread. It is made for the first one of all, so that a
 * program without collectives has none; whoever forks would be warned of it. */
static void ring(void)
{
    pthread_mutex_lock(&sonde_all.lock);
    if (!sonde_all.is_running && !sonde_load_acquire(&sonde_all.leave))
        sonde_all.is_running = sonde_thread_start(work, NULL, &sonde_all.thread) == 0;
    pthread_mutex_unlock(&sonde_all.lock);
    sonde_add_relaxed(&sonde_all.bell, 1);
    sonde_wake(&sonde_all.bell);
}

/* ---- on and off --------------------------------------------------------------------------------------------- */

static void learn_thread(void)
{
    uint64_t self = (uint64_t)pthread_self();
    uint32_t at = 0;
    while (at < sonde_all.threads_n && sonde_all.threads[at].thread != self)
        at++;
    if (at == sonde_all.threads_n && at < SONDE_THREADS)
        sonde_all.threads_n++;
    if (at < SONDE_THREADS) {
        sonde_all.threads[at].thread = self;
        sonde_all.threads[at].tid = sonde_find_tid();
    }
}

static int make_room(void)
{
    if (sonde_all.seen == NULL)
        sonde_all.seen = calloc(SONDE_SEEN_MAX, sizeof *sonde_all.seen);
    if (sonde_all.told == NULL)
        sonde_all.told = calloc(SONDE_TOLD_MAX, sizeof *sonde_all.told);
    return sonde_all.seen == NULL || sonde_all.told == NULL ? -ENOMEM : 0;
}

static void reset(int64_t step)
{
    sonde_all.steps_n = sonde_all.threads_n = sonde_all.groups_n = sonde_all.told_n = sonde_all.workers_n = sonde_all.seen_n = 0;
    sonde_all.first_step = step;
    sonde_all.started_ns = sonde_clock_ns();
    sonde_all.asked_ns = sonde_all.cost_ns = sonde_all.asking_ns = 0;
    sonde_all.asked_serial = 0;
    sonde_all.is_deaf = 0;
    sonde_all.leave = sonde_all.is_asked = 0;
    memset(sonde_all.next_id, 0, sizeof sonde_all.next_id);
    sonde_all.ended = sonde_intern_put(sonde_all.texts, "ended", 5);
    sonde_all.running = sonde_intern_put(sonde_all.texts, "running", 7);
    sonde_all.timeout = sonde_intern_put(sonde_all.texts, "timeout", 7);
    learn_thread();
}

static void release(void)
{
    Py_CLEAR(sonde_all.ring_map);
    Py_CLEAR(sonde_all.text);
    Py_CLEAR(sonde_all.page_map);
    Py_CLEAR(sonde_all.ask);
    sonde_all.ring = NULL;
}

static void open_recorders(void *cpu, const char *cuda_path)
{
    void *cuda = cuda_path == NULL ? NULL : dlopen(cuda_path, RTLD_NOW | RTLD_NOLOAD);
    sonde_all.set_mode = cuda == NULL ? NULL
                                : (int (*)(int *))dlsym(cuda, "cudaThreadExchangeStreamCaptureMode");
    (void)sonde_told_open(SONDE_TOLD_CPU, cpu);
    (void)sonde_told_open(SONDE_TOLD_NCCL, sonde_all.set_mode == NULL ? NULL : cuda);
}

/* collective_start(writer, text, page, libtorch_cpu, libtorch_cuda or None, ask, step, observe) */
static PyObject *collective_start(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *writer, *text, *page, *ask;
    const char *cpu_path, *cuda_path;
    long long step;
    int observe;
    if (!PyArg_ParseTuple(args, "O!O!O!szOLp", &sonde_WriterType, &writer, &sonde_TextType, &text,
                          &sonde_MapType, &page, &cpu_path, &cuda_path, &ask, &step, &observe))
        return NULL;
    if (sonde_all.is_open)
        return PyErr_Format(PyExc_RuntimeError, "collectives are watched already");
    sonde_control *control = sonde_map_memory(page, 0);
    void *cpu = control == NULL ? NULL : dlopen(cpu_path, RTLD_NOW | RTLD_NOLOAD);
    if (control != NULL && cpu == NULL)
        return PyErr_Format(PyExc_OSError, "%s is not loaded", cpu_path);
    sonde_all.ring = cpu == NULL ? NULL : sonde_writer_ring(writer, SONDE_COLLECTIVE_KINDS, &sonde_all.ring_map);
    if (sonde_all.ring == NULL)
        return NULL;
    sonde_all.text = Py_NewRef(text);
    sonde_all.page_map = Py_NewRef(page);
    sonde_all.ask = Py_NewRef(ask);
    sonde_all.texts = sonde_text_table(text);
    sonde_all.on = &control->on;
    reset(step);
    open_recorders(cpu, cuda_path);
    sonde_all.is_observed = observe;
    sonde_all.is_open = 1;
    int status = make_room();
    if (status == 0 && observe)
        status = sonde_seen_start(cpu, sonde_all.on, ring);
    else if (status == 0)
        ring();
    if (status == 0)
        Py_RETURN_NONE;
    sonde_all.is_open = 0;
    release();
    return PyErr_Format(PyExc_OSError, "torch's observers are not where they should be");
}

static PyObject *collective_stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    sonde_seen_stop();
    pthread_mutex_lock(&sonde_all.lock);
    sonde_store_release(&sonde_all.leave, 1);
    int was_running = sonde_all.is_running;
    sonde_all.is_running = 0;
    pthread_mutex_unlock(&sonde_all.lock);
    if (was_running) {
        sonde_add_relaxed(&sonde_all.bell, 1);
        sonde_wake(&sonde_all.bell);
        Py_BEGIN_ALLOW_THREADS
        pthread_join(sonde_all.thread, NULL);
        Py_END_ALLOW_THREADS
    }
    sonde_all.is_open = 0;
    release();
    Py_RETURN_NONE;
}

static void forget_in_child(void)
{
    /* The thread is the parent's, and so are the mapped files. */
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    sonde_all.lock = fresh;
    sonde_all.is_open = sonde_all.is_running = 0;
}

SONDE_IN_CHILD(forget_in_child)

/* ---- what the program tells ------------------------------------------------------------------------------------- */

/* collective_look(address of a tensor, call that has torch do something with it) */
static PyObject *collective_look(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long tensor;
    PyObject *call;
    if (!PyArg_ParseTuple(args, "KO", &tensor, &call))
        return NULL;
    sonde_seen_look((uintptr_t)tensor);
    PyObject *result = PyObject_CallNoArgs(call);
    sonde_seen_looked();
    return result;
}

static PyObject *collective_step(PyObject *Py_UNUSED(module), PyObject *object)
{
    if (!Py_IS_TYPE(object, &sonde_StepType))
        return PyErr_Format(PyExc_TypeError, "a Step expected");
    const sonde_Step *step = (sonde_Step *)object;
    pthread_mutex_lock(&sonde_all.lock);
    sonde_all.steps[sonde_all.steps_n % SONDE_STEPS].number = step->number;
    sonde_all.steps[sonde_all.steps_n++ % SONDE_STEPS].end_ns = step->end_ns;
    learn_thread();
    pthread_mutex_unlock(&sonde_all.lock);
    Py_RETURN_NONE;
}

static PyObject *collective_group(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *name, *ranks;
    unsigned int size;
    if (!PyArg_ParseTuple(args, "UIU", &name, &size, &ranks))
        return NULL;
    if (sonde_all.text == NULL)
        Py_RETURN_NONE;
    int64_t name_id = sonde_text_id(sonde_all.text, name), ranks_id = sonde_text_id(sonde_all.text, ranks);
    if (name_id < 0 || ranks_id < 0)
        return NULL;
    pthread_mutex_lock(&sonde_all.lock);
    uint32_t at = 0;
    while (at < sonde_all.groups_n && sonde_all.groups[at].name != (uint32_t)name_id)
        at++;
    if (at == sonde_all.groups_n && at < SONDE_GROUPS)
        sonde_all.groups_n++;
    if (at < SONDE_GROUPS) {
        sonde_all.groups[at].name = (uint32_t)name_id;
        sonde_all.groups[at].size = size;
        sonde_all.groups[at].ranks = (uint32_t)ranks_id;
    }
    pthread_mutex_unlock(&sonde_all.lock);
    Py_RETURN_NONE;
}

static PyObject *collective_state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    int is_recorded = sonde_told_has(SONDE_TOLD_CPU) || sonde_told_has(SONDE_TOLD_NCCL);
    return Py_BuildValue("{s:O,s:O,s:K,s:L}", "sized", sonde_seen_is_sized() ? Py_True : Py_False,
                         "recorded", is_recorded && !sonde_load_relaxed(&sonde_all.is_deaf) ? Py_True : Py_False,
                         "lost", (unsigned long long)sonde_seen_lost(), "cost_ns",
                         (long long)sonde_all.cost_ns);
}

PyMethodDef sonde_collectives_methods[] = {
    {"collective_start", collective_start, METH_VARARGS,
     "collective_start(writer, text, page, libtorch_cpu, libtorch_cuda, ask, step, observe): have\n"
     "works of c10d written; `ask` is called to have groups told."},
    {"collective_stop", collective_stop, METH_NOARGS, "Write what is left, and watch no more."},
    {"collective_look", collective_look, METH_VARARGS,
     "collective_look(address, call): find where torch keeps the tensors that a range was given;\n"
     "`call` has torch do one operation on the tensor at that address."},
    {"collective_step", collective_step, METH_O,
     "collective_step(step): this step ended, in this thread."},
    {"collective_group", collective_group, METH_VARARGS,
     "collective_group(name, size, ranks): a process group."},
    {"collective_state", collective_state, METH_NOARGS, "What is found of torch, and lost."},
    {NULL, NULL, 0, NULL},
};
