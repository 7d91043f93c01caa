/* How autograd's nodes are seen.
 *
 * The engine calls one of its functions for each node, through a slot that we can take over; that
 * costs next to nothing. Torch also calls every observer when a node begins and ends; that costs
 * torch a microsecond, but happens where the current stream is that of the node.
 *
 * Where a node keeps its number is found by trial: the first nodes are asked for theirs through
 * Python.
 */
#include "torch/module_call.h"
#include "torch/nodes.h"
#include "torch/record_function.h"
#include "kernel/linkage_slot.h"
#include "kernel/fork.h"
#include "kernel/sealed_word.h"

#include <dlfcn.h>
#include <string.h>

enum { CHECK_NODES = 6, GIVE_UP = 256 };
/* A node's number is among its first words. */
enum { FUNCTION_WORDS = 64, NODE_WORDS = 8 };
/* How far a node's forward thread lies behind its number. In what observers get, a view, a map
 * and a vector lie between them; in the node, another number and a flag. */
enum { FUNCTION_THREAD = 8 + 16 + 56 + 24, NODE_THREAD = 24 };

static const char EVALUATE[] =
    "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptrINS0_9GraphTaskEE"
    "PNS0_4NodeERNS0_11InputBufferERKS2_INS0_10ReadyQueueEE";

/* Where a node's number is kept. */
typedef struct {
    int words;
    uint64_t candidates; /* a bit for each word */
    uint32_t at;         /* 0: not known yet */
} place;

static struct {
    uint64_t (*add)(sonde_observer);
    void (*remove)(uint64_t);
    PyObject *current; /* torch._C._current_autograd_node */
    uint64_t handle;
    uint32_t is_on;  /* atomic: nodes are seen, … */
    int is_observed; /* … by an observer, … */
    uint32_t by_engine; /* atomic: … and in the slot */
    sonde_linkage_slot slot;
    int looked, failed, no_engine;
    uint32_t is_known; /* atomic: the places are known */
    pthread_mutex_t lock;
    place function, node;
    int64_t last;
} nodes = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- where is a node's number? --------------------------------------------------------------- */

static int64_t ask_number(void)
{
    int64_t number = -1;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *node = nodes.current == NULL ? NULL : PyObject_CallNoArgs(nodes.current);
    PyObject *value = node == NULL ? NULL : PyObject_CallMethod(node, "_sequence_nr", NULL);
    if (value != NULL)
        number = (int64_t)PyLong_AsUnsignedLongLongMask(value);
    Py_XDECREF(value);
    Py_XDECREF(node);
    PyErr_Clear();
    PyGILState_Release(gil);
    return number;
}

/* Exclude the words that are not this node's number; after a few nodes one word is left. Returns
 * how many are left. */
static int narrow(place *one, const char *memory, int64_t number)
{
    int left = 0, at = 0;
    for (int word = 0; word < one->words; word++) {
        uint64_t bit = UINT64_C(1) << word;
        int64_t value;
        memcpy(&value, memory + word * 8, 8);
        if (value != number)
            one->candidates &= ~bit;
        if (one->candidates & bit) {
            left++;
            at = word * 8;
        }
    }
    if (left == 1 && nodes.looked >= CHECK_NODES)
        one->at = (uint32_t)at;
    return left;
}

/* Do the same for the engine's node. It may be laid out differently from what we expect: then
 * only the observer is used. */
static void narrow_node(const char *node, int64_t number, const char *function)
{
    uint64_t node_tid, seen_tid;
    if (node == NULL)
        return; /* the program runs the node itself */
    if (narrow(&nodes.node, node, number) == 0) {
        nodes.no_engine = 1;
    } else if (nodes.node.at != 0 && nodes.function.at != 0) {
        memcpy(&node_tid, node + nodes.node.at + NODE_THREAD, 8);
        memcpy(&seen_tid, function + nodes.function.at + FUNCTION_THREAD, 8);
        nodes.no_engine = node_tid != seen_tid;
    }
}

static int64_t look(const sonde_torch_lane *here, const char *function)
{
    int64_t number = ask_number();
    pthread_mutex_lock(&nodes.lock);
    if (number > 0 && number != nodes.last && !nodes.is_known && !nodes.failed) {
        nodes.last = number;
        nodes.looked++;
        nodes.failed = narrow(&nodes.function, function, number) == 0;
        if (!nodes.no_engine)
            narrow_node(here->evaluated, number, function);
        if (nodes.looked > GIVE_UP) {
            nodes.failed |= nodes.function.at == 0;
            nodes.no_engine |= nodes.node.at == 0;
        }
        if (nodes.function.at != 0 && (nodes.no_engine || nodes.node.at != 0))
            sonde_store_release(&nodes.is_known, 1);
    }
    pthread_mutex_unlock(&nodes.lock);
    return number;
}

static int64_t read_number(const char *memory, uint32_t at, uint32_t thread, const sonde_torch_lane *here,
                           sonde_torch_lane **lane)
{
    int64_t number;
    uint64_t torch_tid;
    memcpy(&number, memory + at, 8);
    memcpy(&torch_tid, memory + at + thread, 8);
    *lane = number < 0 ? NULL : sonde_torch_find_lane(here, torch_tid);
    return number;
}

/* ---- what torch calls an observer with ------------------------------------------------------------ */

/* Must the owner be changed here? An event goes to the current stream, which is certainly that of
 * the node only where an observer is called. */
static int must_change_owner(int device, int by_engine)
{
    if (!(device & SONDE_DEVICE_BACKWARD))
        return 0;
    int is_engines =
        SONDE_DEVICE_IS_BY_HOST(device, SONDE_DEVICE_BACKWARD) && sonde_load_relaxed(&nodes.by_engine);
    return is_engines == by_engine;
}

__attribute__((visibility("hidden"))) void sonde_torch_node_begins(const void *function);

void sonde_torch_node_begins(const void *function)
{
    sonde_torch_lane *here = sonde_torch.epoch == 0 ? NULL : sonde_torch_here();
    if (here == NULL)
        return;
    sonde_add_relaxed(&sonde_torch.nodes, 1u);
    if (!sonde_load_relaxed(&nodes.by_engine)) {
        /* The thread of the first few nodes is not known; take the one that began the step. */
        sonde_torch_lane *lane = sonde_torch.lead;
        int64_t number = -1;
        if (sonde_load_acquire(&nodes.is_known))
            number = read_number(function, nodes.function.at, FUNCTION_THREAD, here, &lane);
        else if (!nodes.failed)
            number = look(here, function);
        sonde_torch_node_begin(here, 0, number, lane);
    }
    int device = sonde_torch.device;
    if (must_change_owner(device, 0))
        sonde_torch_node_change_owner(here, device);
    sonde_torch_node_seen(here, 0);
}

static void end_node(const void *Py_UNUSED(function), void *Py_UNUSED(context))
{
    sonde_torch_lane *here = sonde_torch.epoch == 0 ? NULL : sonde_torch_here();
    if (here == NULL)
        return;
    sonde_torch_node_seen(here, 1);
    if (here->nodes_n <= SONDE_TORCH_DEEP || !sonde_load_relaxed(&nodes.by_engine))
        sonde_torch_node_end(here, 0);
}

SONDE_START_CALLBACK(sonde_torch_begin_node, sonde_torch_node_begins)

/* ---- what the engine calls ---------------------------------------------------------------------------- */

typedef struct {
    sonde_torch_lane *lane; /* NULL: it is not seen */
    const void *outer;
    uint32_t epoch;
    int is_timed;
} evaluation;

static void end_evaluation(const evaluation *one)
{
    if (one->lane == NULL || sonde_torch.epoch != one->epoch || one->lane->epoch != one->epoch)
        return;
    one->lane->evaluated = one->outer;
    if (one->is_timed)
        sonde_torch_node_end(one->lane, 1);
}

/* This is called in place of Engine::evaluate_function, whose arguments are addresses. An
 * exception that it throws passes through here, and ends the node. */
static void evaluate(void *engine, void *task, const void *node, void *inputs, void *queue)
{
    __attribute__((cleanup(end_evaluation))) evaluation one = {.epoch = sonde_torch.epoch};
    if (one.epoch != 0 && sonde_load_relaxed(&nodes.is_on) && (one.lane = sonde_torch_here()) != NULL) {
        one.outer = one.lane->evaluated;
        one.lane->evaluated = node;
        one.is_timed = (int)sonde_load_relaxed(&nodes.by_engine);
    }
    if (one.is_timed) {
        int device = sonde_torch.device;
        sonde_torch_lane *lane;
        int64_t number = read_number(node, nodes.node.at, NODE_THREAD, one.lane, &lane);
        sonde_torch_node_begin(one.lane, 1, number, lane);
        if (must_change_owner(device, 1))
            sonde_torch_node_change_owner(one.lane, device);
    }
    ((void (*)(void *, void *, const void *, void *, void *))nodes.slot.original)(engine, task, node, inputs,
                                                                                 queue);
}

/* ---- on and off -------------------------------------------------------------------------------------- */

static void *find(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        PyErr_Format(PyExc_OSError, "torch has no function %s", name);
    return found;
}

static void begin_to_look(void *library, int has_engine)
{
    if (nodes.is_known)
        return;
    nodes.function = (place){FUNCTION_WORDS, UINT64_MAX, 0};
    nodes.node = (place){NODE_WORDS, UINT64_MAX, 0};
    nodes.looked = nodes.failed = 0;
    if (has_engine && nodes.slot.at == NULL)
        sonde_linkage_slot_find(&nodes.slot, library, EVALUATE);
    nodes.no_engine = nodes.slot.at == NULL;
}

/* observe(path of libtorch_cpu, current_node or None, engine): None: only find the functions; engine: its
 * nodes are laid out as we think. */
static PyObject *torch_observe(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *path;
    PyObject *current;
    int has_engine;
    if (!PyArg_ParseTuple(args, "sOp", &path, &current, &has_engine))
        return NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL)
        return PyErr_Format(PyExc_OSError, "%s is not loaded", path);
    sonde_torch.sequence = (uint64_t(*)(void))dlsym(library, "_ZN2at15sequence_number4peekEv");
    sonde_torch.graph_task =
        (int (*)(void))dlsym(library, "_ZN5torch8autograd25get_current_graph_task_idEv");
    sonde_torch.thread_id =
        (uint64_t(*)(void))dlsym(library, "_ZN2at14RecordFunction15currentThreadIdEv");
    if (current == Py_None)
        Py_RETURN_NONE;
    if (sonde_torch.sequence == NULL || sonde_torch.thread_id == NULL)
        return PyErr_Format(PyExc_OSError, "torch does not tell the numbers of its nodes");
    nodes.add = (uint64_t(*)(sonde_observer))find(library, SONDE_ADD_OBSERVER);
    nodes.remove = (void (*)(uint64_t))find(library, SONDE_REMOVE_OBSERVER);
    if (nodes.add == NULL || nodes.remove == NULL)
        return NULL;
    Py_XSETREF(nodes.current, Py_NewRef(current));
    begin_to_look(library, has_engine);
    Py_RETURN_NONE;
}

static void add_observer(int on)
{
    if (on == nodes.is_observed)
        return;
    nodes.is_observed = on;
    if (on) {
        sonde_observer ours = {.start = (void *)sonde_torch_begin_node, .end = (void *)end_node, .probability = 1.0};
        ours.scopes_and_needs[SONDE_SCOPE_BACKWARD] = 1;
        nodes.handle = nodes.add(ours);
    } else {
        nodes.remove(nodes.handle);
    }
}

/* Linux did not let us change the slot. */
static void give_engine_up(void)
{
    pthread_mutex_lock(&nodes.lock);
    nodes.no_engine = 1;
    pthread_mutex_unlock(&nodes.lock);
}

void sonde_torch_see_nodes(int on, int events)
{
    /* A step that ends while another thread stops the tracer must not switch this on again. */
    on = on && nodes.add != NULL && sonde_torch_tracer != NULL;
    int is_known = (int)sonde_load_acquire(&nodes.is_known); /* then no_engine does not change any more */
    int has_slot = on && !nodes.no_engine && sonde_linkage_slot_take(&nodes.slot, (void *)evaluate) == 0;
    if (on && nodes.slot.at == NULL)
        give_engine_up();
    sonde_store_relaxed(&nodes.by_engine, (uint32_t)(is_known && has_slot));
    sonde_store_relaxed(&nodes.is_on, (uint32_t)on);
    sonde_torch.has_nodes = on;
    add_observer(on && (!nodes.by_engine || events));
}

static PyObject *torch_ignore(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    sonde_torch_see_nodes(0, 0);
    sonde_linkage_slot_give_back(&nodes.slot, (void *)evaluate);
    Py_RETURN_NONE;
}

/* A thread of the parent may have held the lock. */
static void unlock_in_child(void) { SONDE_RESET(nodes.lock, PTHREAD_MUTEX_INITIALIZER); }

SONDE_IN_CHILD(unlock_in_child)

/* torch_observed(): "engine", "sealed engine", "observer", "looking" or "failed". */
static PyObject *torch_observed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    const char *how = nodes.failed                             ? "failed"
                       : !sonde_load_acquire(&nodes.is_known)   ? "looking"
                       : nodes.no_engine                        ? "observer"
                       : nodes.slot.look == SONDE_WORD_SEALED   ? "sealed engine"
                                                                : "engine";
    return PyUnicode_FromString(how);
}

PyMethodDef sonde_observer_methods[] = {
    {"torch_observe", torch_observe, METH_VARARGS,
     "torch_observe(library, current_node, engine): see autograd's nodes from now on; with None only\n"
     "find the functions of torch."},
    {"torch_ignore", torch_ignore, METH_NOARGS, "Stop seeing autograd's nodes."},
    {"torch_observed", torch_observed, METH_NOARGS,
     "Return how autograd's nodes are seen: looking, engine, sealed engine, observer or failed."},
    {NULL, NULL, 0, NULL},
};
