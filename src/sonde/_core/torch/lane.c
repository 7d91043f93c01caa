/* Lanes: what each thread knows of the modules that it calls. */
#include "torch/module_call.h"
#include "kernel/fork.h"
#include "kernel/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { NAP_NS = 2000000 };

sonde_torch_state sonde_torch;
sonde_TorchTracer *sonde_torch_tracer;

static __thread sonde_torch_lane *mine;
static pthread_key_t end_key;
static pthread_once_t end_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lanes_lock = PTHREAD_MUTEX_INITIALIZER;

static void on_thread_end(void *arg)
{
    sonde_torch_lane *lane = arg;
    mine = NULL;
    /* Release: all that this thread wrote is visible before this. */
    sonde_store_release(&lane->ended, 1);
}

static void make_key(void) { (void)pthread_key_create(&end_key, on_thread_end); }

static void *map_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

int sonde_torch_need_calls(sonde_torch_lane *lane)
{
    if (lane->calls == NULL)
        lane->calls = map_memory(SONDE_TORCH_CALLS * sizeof *lane->calls);
    return lane->calls == NULL ? -ENOMEM : 0;
}

/* Return a lane whose thread is gone and whose rows are written, or a new one. */
static sonde_torch_lane *find_free(void)
{
    for (sonde_torch_lane *lane = sonde_torch.lanes; lane != NULL; lane = lane->next) {
        if (sonde_load_acquire(&lane->ended) &&
            (lane->epoch != sonde_torch.epoch ||
             (sonde_load_acquire(&lane->settled) == lane->head &&
              sonde_load_acquire(&lane->spans_settled) == lane->spans_head)))
            return lane;
    }
    if (sonde_torch.lanes_n >= SONDE_TORCH_LANES)
        return NULL;
    sonde_torch_lane *lane = calloc(1, sizeof *lane);
    if (lane == NULL)
        return NULL;
    lane->next = sonde_torch.lanes;
    lane->ended = 1; /* until it is filled in */
    sonde_torch.lanes_n++;
    /* Release: the writer's thread goes through the list without the lock. */
    sonde_store_release(&sonde_torch.lanes, lane);
    return lane;
}

static void reset(sonde_torch_lane *lane)
{
    lane->open = SONDE_TORCH_NONE;
    lane->passing = lane->running = 0;
    lane->nodes_n = 0;
    lane->evaluated = NULL;
    lane->last_lane = NULL;
    lane->last_call = SONDE_TORCH_NONE;
    lane->event_ns = 0;
    sonde_store_relaxed(&lane->settled, lane->head);
    sonde_store_relaxed(&lane->spans_settled, lane->spans_head);
    /* Release: whoever sees that it is of this recording sees where its calls begin. */
    sonde_store_release(&lane->epoch, sonde_torch.epoch);
}

static sonde_torch_lane *join(void)
{
    if (pthread_once(&end_once, make_key) != 0)
        return NULL;
    pthread_mutex_lock(&lanes_lock);
    sonde_torch_lane *lane = find_free();
    if (lane != NULL && pthread_setspecific(end_key, lane) == 0) {
        reset(lane);
        lane->tid = sonde_find_tid();
        lane->torch_tid = sonde_torch.thread_id == NULL ? 0 : sonde_torch.thread_id();
        sonde_store_release(&lane->ended, 0);
        mine = lane;
    }
    pthread_mutex_unlock(&lanes_lock);
    return mine;
}

sonde_torch_lane *sonde_torch_here(void)
{
    sonde_torch_lane *lane = mine;
    if (lane == NULL)
        return join();
    if (lane->epoch != sonde_torch.epoch) { /* it belongs to a tracer that has ended since */
        reset(lane);
        lane->torch_tid = sonde_torch.thread_id == NULL ? 0 : sonde_torch.thread_id();
    }
    return lane;
}

sonde_torch_now sonde_torch_find_now(void)
{
    const sonde_torch_lane *lane = mine, *owner = lane;
    sonde_torch_now now = {.step = sonde_torch.epoch == 0 ? -1 : sonde_load_relaxed(&sonde_torch.step)};
    if (now.step < 0 || lane == NULL || lane->epoch != sonde_torch.epoch)
        return now;
    uint64_t call = lane->open;
    if (lane->nodes_n > 0 && lane->nodes_n <= SONDE_TORCH_DEEP) { /* in backward, that of its node */
        owner = lane->nodes[lane->nodes_n - 1].lane;
        call = lane->nodes[lane->nodes_n - 1].call;
    }
    if (owner != NULL && owner->calls != NULL && call != SONDE_TORCH_NONE)
        now.module = sonde_torch_at(owner, call)->module;
    return now;
}

void sonde_torch_hurry(void) { sonde_wake(&sonde_torch.leave); }

static void forget_in_child(void)
{
    SONDE_RESET(sonde_torch_tracer, NULL);
    SONDE_RESET(sonde_torch.epoch, 0);
    SONDE_RESET(sonde_torch.on, 0);
    SONDE_RESET(sonde_torch.device, 0);
    SONDE_RESET(lanes_lock, PTHREAD_MUTEX_INITIALIZER);
    for (sonde_torch_lane *lane = sonde_torch.lanes; lane != NULL; lane = lane->next)
        if (lane != mine)
            lane->ended = 1; /* its thread belongs to the parent */
}

SONDE_IN_CHILD(forget_in_child)

/* ---- for those who want to read the rows now ----------------------------------------------- */

/* Has each call of the steps that are over its row? */
static int is_settled(void)
{
    int64_t step = sonde_load_acquire(&sonde_torch.step);
    for (sonde_torch_lane *lane = sonde_load_acquire(&sonde_torch.lanes); lane != NULL; lane = lane->next) {
        uint64_t at = sonde_load_acquire(&lane->settled);
        if (lane->calls != NULL && sonde_load_acquire(&lane->epoch) == sonde_torch.epoch &&
            at < sonde_load_acquire(&lane->head) && sonde_torch_at(lane, at)->step < step)
            return 0;
    }
    return 1;
}

static PyObject *torch_settle(PyObject *Py_UNUSED(module), PyObject *timeout)
{
    double timeout_s = PyFloat_AsDouble(timeout);
    if (timeout_s == -1.0 && PyErr_Occurred())
        return NULL;
    int is_done = sonde_torch.epoch == 0;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t end_ns = sonde_clock_ns() + (int64_t)(timeout_s * 1e9); !is_done;) {
        is_done = is_settled();
        if (is_done || sonde_clock_ns() >= end_ns)
            break;
        sonde_torch_hurry();
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(is_done);
}

static PyObject *torch_has_calls(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(sonde_torch.epoch != 0 && sonde_torch.first_ns != 0);
}

PyMethodDef sonde_lane_methods[] = {
    {"torch_settle", torch_settle, METH_O,
     "torch_settle(timeout_s): wait until the modules of all steps that are over have rows; return whether they\n"
     "have."},
    {"torch_has_calls", torch_has_calls, METH_NOARGS, "Return whether modules were called in the current step."},
    {NULL, NULL, 0, NULL},
};
