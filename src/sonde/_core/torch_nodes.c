/* Time of autograd's nodes, and the module calls that they belong to.
 *
 * Torch tells every observer of its when a node of the graph begins and ends. An
 * observer is a C++ value; we have no headers of the torch that is installed, so
 * it is laid out by hand here (naming.py has compared the installed header), and
 * where a node's number lies is found by looking: the first nodes are asked for
 * theirs through Python.
 */
#include "torch_call.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { SCOPE_BACKWARD = 1, LOOK_BYTES = 512, LOOK_NODES = 6, GIVE_UP = 256, MEASURE_EVERY = 16 };
/* Between a node's number and its forward thread: a view, a map and a vector. */
enum { THREAD_AFTER_NUMBER = 8 + 16 + 56 + 24 };

/* at::RecordFunctionCallback, passed by value: more than 16 bytes and nothing to copy
 * by hand, so both machines pass it as they would this. */
typedef struct {
    void *start, *end;
    double probability;
    uint8_t scopes_and_needs[24];
} observer;

static struct {
    uint64_t (*add)(observer);
    void (*remove)(uint64_t);
    PyObject *current; /* torch._C._current_autograd_node */
    uint64_t handle;
    int is_on;
    uint32_t number_at; /* atomic: where a node's number is; 0: not known yet */
    int looked, failed;
    pthread_mutex_t lock;
    uint64_t candidates[LOOK_BYTES / 64]; /* a bit for each word */
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

/* Of all words that a few nodes have in common with their numbers, one is left. */
static int64_t look(const char *function)
{
    int64_t number = ask_number();
    pthread_mutex_lock(&nodes.lock);
    if (number > 0 && number != nodes.last && !nodes.failed && nodes.number_at == 0) {
        int left = 0, at = 0;
        nodes.last = number;
        for (int word = 0; word < LOOK_BYTES / 8; word++) {
            uint64_t bit = UINT64_C(1) << word % 64, *bits = &nodes.candidates[word / 64];
            int64_t value;
            memcpy(&value, function + word * 8, 8);
            if (value != number)
                *bits &= ~bit;
            if (*bits & bit) {
                left++;
                at = word * 8;
            }
        }
        nodes.looked++;
        if (left == 1 && nodes.looked >= LOOK_NODES)
            sonde_store_release(&nodes.number_at, (uint32_t)at);
        nodes.failed = left == 0 || nodes.looked > GIVE_UP;
    }
    pthread_mutex_unlock(&nodes.lock);
    return number;
}

/* ---- whose is it? ----------------------------------------------------------------------------- */

static sonde_torch_lane *find_lane(sonde_torch_lane *here, uint64_t torch_tid)
{
    if (here->last_lane != NULL && here->last_lane->torch_tid == torch_tid)
        return here->last_lane;
    sonde_torch_lane *lane = sonde_load_acquire(&sonde_torch.lanes);
    while (lane != NULL && (lane->torch_tid != torch_tid || lane->epoch != sonde_torch.epoch ||
                            lane->calls == NULL))
        lane = lane->next;
    return lane;
}

/* Backward goes through the calls from the last one on: look near the one before first. */
static int is_last_before(const sonde_torch_lane *lane, uint64_t call, uint64_t number, uint64_t head)
{
    return sonde_torch_at(lane, call)->seq_enter <= number &&
           (call + 1 >= head || sonde_torch_at(lane, call + 1)->seq_enter > number);
}

/* The innermost call under way when autograd's counter had this number. */
static uint64_t find_call(const sonde_torch_lane *lane, uint64_t number, uint64_t near)
{
    uint64_t low = sonde_load_acquire(&lane->settled), high = sonde_load_acquire(&lane->head), first = low;
    for (int back = 0; back < 3 && near != SONDE_TORCH_NONE && near >= first + 2; back++, near--)
        if (near < high && is_last_before(lane, near, number, high)) {
            low = high = near + 1;
            break;
        }
    while (low < high) { /* the last one that began before */
        uint64_t middle = low + (high - low) / 2;
        if (sonde_torch_at(lane, middle)->seq_enter <= number)
            low = middle + 1;
        else
            high = middle;
    }
    uint64_t call = low == first ? SONDE_TORCH_NONE : low - 1;
    while (call != SONDE_TORCH_NONE && call >= first) {
        const sonde_torch_call *one = sonde_torch_at(lane, call);
        if (sonde_load_acquire(&one->exit_ns) == 0 || number < one->seq_exit)
            return call;
        call = one->parent;
    }
    return SONDE_TORCH_NONE;
}

static void find_owner(sonde_torch_lane *here, sonde_torch_node *node, const char *function)
{
    int64_t number;
    if (sonde_load_acquire(&nodes.number_at) == 0) {
        /* Of the first few, the thread is not known; it is the one that began the step. */
        number = nodes.failed ? -1 : look(function);
        here->last_lane = sonde_torch.lead;
    } else {
        uint64_t torch_tid;
        memcpy(&number, function + nodes.number_at, 8);
        memcpy(&torch_tid, function + nodes.number_at + THREAD_AFTER_NUMBER, 8);
        if (number >= 0)
            here->last_lane = find_lane(here, torch_tid);
    }
    if (number >= 0)
        here->last_call = here->last_lane == NULL || here->last_lane->calls == NULL
                              ? SONDE_TORCH_NONE
                              : find_call(here->last_lane, (uint64_t)number, here->last_call);
    /* One without a number adds up a gradient: it belongs to the node before it. */
    node->lane = here->last_call == SONDE_TORCH_NONE ? NULL : here->last_lane;
    node->call = here->last_call;
}

/* On a device, each change of owner gets an event. */
static void mark_device(sonde_torch_lane *here, sonde_torch_lane *owner, uint64_t call)
{
    if (here->spans == NULL)
        here->spans = calloc(SONDE_TORCH_SPANS, sizeof *here->spans);
    uint64_t head = here->spans_head, settled = sonde_load_acquire(&here->spans_settled);
    if (here->spans == NULL || head - settled >= SONDE_TORCH_SPANS)
        return;
    if (head != settled) {
        const sonde_torch_span *last = &here->spans[(head - 1) % SONDE_TORCH_SPANS];
        if (last->lane == owner && last->call == call)
            return;
    } else if (owner == NULL) {
        return;
    }
    int32_t event = sonde_torch_event();
    if (event < 0)
        return;
    here->spans[head % SONDE_TORCH_SPANS] =
        (sonde_torch_span){owner, call, sonde_load_relaxed(&sonde_torch.step), event};
    /* Release: a span that is there has its fields. */
    sonde_store_release(&here->spans_head, head + 1);
}

void sonde_torch_close_spans(void)
{
    if (!(sonde_torch.device & 2))
        return;
    /* The nodes ran in threads of the engine's own, which have nothing to do now. */
    for (sonde_torch_lane *lane = sonde_load_acquire(&sonde_torch.lanes); lane != NULL; lane = lane->next)
        if (lane->spans != NULL && lane->epoch == sonde_torch.epoch)
            mark_device(lane, NULL, SONDE_TORCH_NONE);
}

/* ---- what torch calls --------------------------------------------------------------------------- */

__attribute__((visibility("hidden"))) void sonde_torch_node_begins(const void *function);
__attribute__((visibility("hidden"))) void sonde_torch_node_started(void);

void sonde_torch_node_begins(const void *function)
{
    sonde_torch_lane *here = sonde_torch.epoch == 0 ? NULL : sonde_torch_here();
    if (here == NULL)
        return;
    if (here->nodes_n++ >= SONDE_TORCH_DEEP)
        return;
    sonde_torch_node *node = &here->nodes[here->nodes_n - 1];
    *node = (sonde_torch_node){.call = SONDE_TORCH_NONE};
    sonde_add_relaxed(&sonde_torch.nodes, 1u);
    find_owner(here, node, function);
    if (sonde_torch.device & 2)
        mark_device(here, node->lane, node->call);
    node->begin_ns = sonde_clock_ns();
}

static void end_node(const void *Py_UNUSED(function), void *Py_UNUSED(context))
{
    int64_t now_ns = sonde_clock_ns();
    sonde_torch_lane *here = sonde_torch.epoch == 0 ? NULL : sonde_torch_here();
    if (here == NULL || here->nodes_n == 0)
        return; /* it began before us */
    if (--here->nodes_n >= SONDE_TORCH_DEEP)
        return;
    const sonde_torch_node *node = &here->nodes[here->nodes_n];
    int64_t took_ns = now_ns - node->begin_ns, own_ns = took_ns - node->inner_ns;
    if (here->nodes_n > 0)
        here->nodes[here->nodes_n - 1].inner_ns += took_ns;
    if (node->lane == NULL) {
        sonde_add_relaxed(&sonde_torch.unowned_ns, own_ns);
        return;
    }
    sonde_torch_call *call = sonde_torch_at(node->lane, node->call);
    sonde_add_relaxed(&sonde_torch.owned_ns, own_ns);
    sonde_add_relaxed(&call->back_ns, own_ns);
    int64_t none = 0;
    (void)sonde_cas_relaxed(&call->back_begin_ns, &none, node->begin_ns);
    if (here->turn++ % MEASURE_EVERY == 0)
        sonde_add_relaxed(&sonde_torch.direct_ns, (sonde_clock_ns() - now_ns) * 2 * MEASURE_EVERY);
}

/* The start callback returns a std::unique_ptr, which a C++ function writes to where its
 * caller says; we return an empty one. */
#if defined(__x86_64__)
static void *begin_node(void **result, const void *function)
{
    *result = NULL;
    sonde_torch_node_begins(function);
    return result;
}
#define BEGIN_NODE ((void *)begin_node)
#else
/* x8 holds the place. */
__attribute__((visibility("hidden"))) extern char sonde_torch_begin_node[];
__asm__(".pushsection .text\n"
        ".hidden sonde_torch_begin_node\n"
        ".globl sonde_torch_begin_node\n"
        ".type sonde_torch_begin_node,@function\n"
        ".balign 4\n"
        "sonde_torch_begin_node:\n"
        "    hint #34\n"
        "    str xzr, [x8]\n"
        "    b sonde_torch_node_begins\n"
        ".popsection\n");
#define BEGIN_NODE ((void *)sonde_torch_begin_node)
#endif

/* ---- on and off -------------------------------------------------------------------------------------- */

static void *find(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        PyErr_Format(PyExc_OSError, "torch has no function %s", name);
    return found;
}

/* observe(path of libtorch_cpu, current_node or None): None: only find the functions. */
PyObject *sonde_torch_observe(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *path;
    PyObject *current;
    if (!PyArg_ParseTuple(args, "sO", &path, &current))
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
        return PyErr_Format(PyExc_OSError, "torch does not say the numbers of its nodes");
    nodes.add = (uint64_t(*)(observer))find(
        library, "_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE");
    nodes.remove = (void (*)(uint64_t))find(library, "_ZN2at14removeCallbackEm");
    if (nodes.add == NULL || nodes.remove == NULL)
        return NULL;
    Py_XSETREF(nodes.current, Py_NewRef(current));
    if (nodes.number_at == 0) {
        memset(nodes.candidates, 0xff, sizeof nodes.candidates);
        nodes.looked = nodes.failed = 0;
    }
    Py_RETURN_NONE;
}

void sonde_torch_see_nodes(int on)
{
    /* A step that ends while another thread stops the tracer must not begin it again. */
    if (on && !nodes.is_on && nodes.add != NULL && sonde_tracer != NULL) {
        observer ours = {.start = BEGIN_NODE, .end = (void *)end_node, .probability = 1.0};
        ours.scopes_and_needs[SCOPE_BACKWARD] = 1;
        nodes.handle = nodes.add(ours);
        nodes.is_on = 1;
    } else if (!on && nodes.is_on) {
        nodes.is_on = 0;
        nodes.remove(nodes.handle);
    }
}

PyObject *sonde_torch_ignore(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    sonde_torch_see_nodes(0);
    Py_RETURN_NONE;
}

/* A thread of the parent's may have held it. */
void sonde_torch_nodes_off(void) { pthread_mutex_init(&nodes.lock, NULL); }

/* observed() -> "exact", "looking", "failed" or "off". */
PyObject *sonde_torch_observed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    const char *said = !nodes.is_on             ? "off"
                       : nodes.failed           ? "failed"
                       : nodes.number_at == 0   ? "looking"
                                                : "exact";
    return PyUnicode_FromString(said);
}
