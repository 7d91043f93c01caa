/* Collectives: the thread that writes their rows, and what the program reports to it. */
#include "collectives/collectives.h"
#include "kernel/fork.h"
#include "kernel/read_memory.h"
#include "kernel/thread.h"
#include "torch/step_end.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WRITE_NS 500000000       /* between two rounds, while works wait for their rows */
#define IDLE_NS 3600000000000

static void *work(void *Py_UNUSED(arg))
{
    int is_waiting = 0;
    while (!sonde_load_acquire(&sonde_collectives.leave)) {
        uint32_t bell = sonde_load_acquire(&sonde_collectives.bell);
        /* Works that begin from here on ring the bell. */
        is_waiting = sonde_collectives_write(0);
        /* Where works are not observed, nobody rings the bell. */
        is_waiting |= !sonde_collectives.is_observed;
        sonde_wait(&sonde_collectives.bell, bell, is_waiting ? WRITE_NS : IDLE_NS);
    }
    (void)sonde_collectives_write(1);
    return NULL;
}

/* Wake the thread at the first work after a while. The thread is made only for the very first
 * work, so that a program without collectives has no such thread: Python warns of threads at a
 * fork. */
static void ring(void)
{
    pthread_mutex_lock(&sonde_collectives.lock);
    if (!sonde_collectives.is_running && !sonde_load_acquire(&sonde_collectives.leave))
        sonde_collectives.is_running = sonde_thread_start(work, NULL, &sonde_collectives.thread) == 0;
    pthread_mutex_unlock(&sonde_collectives.lock);
    sonde_add_relaxed(&sonde_collectives.bell, 1);
    sonde_wake(&sonde_collectives.bell);
}

/* ---- on and off --------------------------------------------------------------------------------------------- */

static void learn_thread(void)
{
    uint64_t self = (uint64_t)pthread_self();
    uint32_t at = 0;
    while (at < sonde_collectives.threads_n && sonde_collectives.threads[at].thread != self)
        at++;
    if (at == sonde_collectives.threads_n && at < SONDE_THREADS)
        sonde_collectives.threads_n++;
    if (at < SONDE_THREADS) {
        sonde_collectives.threads[at].thread = self;
        sonde_collectives.threads[at].tid = sonde_find_tid();
    }
}

static int make_room(void)
{
    if (sonde_collectives.works == NULL)
        sonde_collectives.works = calloc(SONDE_OBSERVED_MAX, sizeof *sonde_collectives.works);
    if (sonde_collectives.entries == NULL)
        sonde_collectives.entries = calloc(SONDE_ENTRIES_MAX, sizeof *sonde_collectives.entries);
    return sonde_collectives.works == NULL || sonde_collectives.entries == NULL ? -ENOMEM : 0;
}

static void reset(int64_t step)
{
    sonde_collectives.steps_n = sonde_collectives.threads_n = sonde_collectives.groups_n = sonde_collectives.entries_n = sonde_collectives.workers_n = sonde_collectives.works_n = 0;
    sonde_collectives.first_step = step;
    sonde_collectives.started_ns = sonde_clock_ns();
    sonde_collectives.asked_ns = sonde_collectives.cost_ns = sonde_collectives.asking_ns = 0;
    sonde_collectives.asked_serial = 0;
    sonde_collectives.is_unreadable = 0;
    sonde_collectives.leave = sonde_collectives.is_asked = 0;
    memset(sonde_collectives.next_id, 0, sizeof sonde_collectives.next_id);
    sonde_collectives.ended = sonde_intern_put(sonde_collectives.texts, "ended", 5);
    sonde_collectives.running = sonde_intern_put(sonde_collectives.texts, "running", 7);
    sonde_collectives.timeout = sonde_intern_put(sonde_collectives.texts, "timeout", 7);
    learn_thread();
}

static void release(void)
{
    Py_CLEAR(sonde_collectives.ring_map);
    Py_CLEAR(sonde_collectives.text);
    Py_CLEAR(sonde_collectives.page_map);
    Py_CLEAR(sonde_collectives.ask);
}

static void open_recorders(void *cpu, const char *cuda_path)
{
    void *cuda = cuda_path == NULL ? NULL : dlopen(cuda_path, RTLD_NOW | RTLD_NOLOAD);
    (void)sonde_flight_recorder_open(SONDE_RECORDER_CPU, cpu);
    (void)sonde_flight_recorder_open(SONDE_RECORDER_NCCL, cuda);
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
    if (sonde_collectives.is_open)
        return PyErr_Format(PyExc_RuntimeError, "collectives are already being recorded");
    sonde_control *control = sonde_map_memory(page, 0);
    void *cpu = control == NULL ? NULL : dlopen(cpu_path, RTLD_NOW | RTLD_NOLOAD);
    if (control != NULL && cpu == NULL)
        return PyErr_Format(PyExc_OSError, "%s is not loaded", cpu_path);
    sonde_collectives.ring_map = cpu == NULL ? NULL : sonde_writer_ring(writer, SONDE_COLLECTIVE_KINDS, &sonde_collectives.ring);
    if (sonde_collectives.ring_map == NULL)
        return NULL;
    sonde_collectives.text = Py_NewRef(text);
    sonde_collectives.page_map = Py_NewRef(page);
    sonde_collectives.ask = Py_NewRef(ask);
    sonde_collectives.texts = sonde_text_table(text);
    sonde_collectives.on = &control->on;
    reset(step);
    open_recorders(cpu, cuda_path);
    sonde_collectives.is_observed = observe;
    sonde_collectives.is_open = 1;
    int status = make_room();
    if (status == 0 && observe)
        status = sonde_observed_start(cpu, sonde_collectives.on, ring);
    else if (status == 0)
        ring();
    if (status == 0)
        Py_RETURN_NONE;
    sonde_collectives.is_open = 0;
    release();
    return PyErr_Format(PyExc_OSError, "torch's observers were not found");
}

static PyObject *collective_stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    sonde_observed_stop();
    pthread_mutex_lock(&sonde_collectives.lock);
    sonde_store_release(&sonde_collectives.leave, 1);
    int was_running = sonde_collectives.is_running;
    sonde_collectives.is_running = 0;
    pthread_mutex_unlock(&sonde_collectives.lock);
    if (was_running) {
        sonde_add_relaxed(&sonde_collectives.bell, 1);
        sonde_wake(&sonde_collectives.bell);
        Py_BEGIN_ALLOW_THREADS
        pthread_join(sonde_collectives.thread, NULL);
        Py_END_ALLOW_THREADS
    }
    sonde_collectives.is_open = 0;
    release();
    Py_RETURN_NONE;
}

static void forget_in_child(void)
{
    /* The thread belongs to the parent, and so do the mapped files. */
    SONDE_RESET(sonde_collectives.lock, PTHREAD_MUTEX_INITIALIZER);
    SONDE_RESET(sonde_collectives.is_open, 0);
    SONDE_RESET(sonde_collectives.is_running, 0);
}

SONDE_IN_CHILD(forget_in_child)

/* ---- what the program reports ----------------------------------------------------------------------------------- */

/* collective_find_inputs(address of a tensor, call that has torch do something with it) */
static PyObject *collective_find_inputs(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long tensor;
    PyObject *call;
    if (!PyArg_ParseTuple(args, "KO", &tensor, &call))
        return NULL;
    (void)sonde_memory_open();
    sonde_observed_begin((uintptr_t)tensor);
    PyObject *result = PyObject_CallNoArgs(call);
    sonde_observed_end();
    return result;
}

static PyObject *collective_step(PyObject *Py_UNUSED(module), PyObject *object)
{
    if (!Py_IS_TYPE(object, &sonde_StepType))
        return PyErr_Format(PyExc_TypeError, "expected a Step");
    const sonde_Step *step = (sonde_Step *)object;
    pthread_mutex_lock(&sonde_collectives.lock);
    sonde_collectives.steps[sonde_collectives.steps_n % SONDE_STEPS].number = step->number;
    sonde_collectives.steps[sonde_collectives.steps_n++ % SONDE_STEPS].end_ns = step->end_ns;
    learn_thread();
    pthread_mutex_unlock(&sonde_collectives.lock);
    Py_RETURN_NONE;
}

static PyObject *collective_group(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *name, *ranks;
    unsigned int size;
    if (!PyArg_ParseTuple(args, "UIU", &name, &size, &ranks))
        return NULL;
    if (sonde_collectives.text == NULL)
        Py_RETURN_NONE;
    int64_t name_id = sonde_text_id(sonde_collectives.text, name), ranks_id = sonde_text_id(sonde_collectives.text, ranks);
    if (name_id < 0 || ranks_id < 0)
        return NULL;
    pthread_mutex_lock(&sonde_collectives.lock);
    uint32_t at = 0;
    while (at < sonde_collectives.groups_n && sonde_collectives.groups[at].name != (uint32_t)name_id)
        at++;
    if (at == sonde_collectives.groups_n && at < SONDE_GROUPS)
        sonde_collectives.groups_n++;
    if (at < SONDE_GROUPS) {
        sonde_collectives.groups[at].name = (uint32_t)name_id;
        sonde_collectives.groups[at].size = size;
        sonde_collectives.groups[at].ranks = (uint32_t)ranks_id;
    }
    pthread_mutex_unlock(&sonde_collectives.lock);
    Py_RETURN_NONE;
}

static PyObject *collective_state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    int is_recorded = sonde_flight_recorder_has(SONDE_RECORDER_CPU) || sonde_flight_recorder_has(SONDE_RECORDER_NCCL);
    return Py_BuildValue("{s:O,s:O,s:K,s:L}", "sized", sonde_observed_is_sized() ? Py_True : Py_False,
                         "recorded", is_recorded && !sonde_load_relaxed(&sonde_collectives.is_unreadable) ? Py_True : Py_False,
                         "lost", (unsigned long long)sonde_observed_lost(), "cost_ns",
                         (long long)sonde_collectives.cost_ns);
}

PyMethodDef sonde_collectives_methods[] = {
    {"collective_start", collective_start, METH_VARARGS,
     "collective_start(writer, text, page, libtorch_cpu, libtorch_cuda, ask, step, observe): have\n"
     "works of c10d written; `ask` is called when groups need names."},
    {"collective_stop", collective_stop, METH_NOARGS, "Write what is left, and record no more."},
    {"collective_find_inputs", collective_find_inputs, METH_VARARGS,
     "collective_find_inputs(address, call): find where torch keeps the inputs of a range;\n"
     "`call` has torch do one operation on the tensor at that address."},
    {"collective_step", collective_step, METH_O,
     "collective_step(step): note that this step has ended, in this thread."},
    {"collective_group", collective_group, METH_VARARGS,
     "collective_group(name, size, ranks): name a process group."},
    {"collective_state", collective_state, METH_NOARGS, "Return what was found in torch, and how many works were lost."},
    {NULL, NULL, 0, NULL},
};
