/* What stands in place of `nn.Module.__call__`.
 *
 * `module(x)` finds it in the class and calls it; whoever asks for the attribute gets the
 * original. So torch.compile, fx, pickle and others do not notice us.
 */
#include "torch/module_call.h"

#include <string.h>

/* Our own work is measured in one call of this many. UNSEEN_NS is half of what cannot be measured
 * from inside a call: getting here and back, and the program's extra cache misses afterwards
 * (measured from outside, on the host of an H200). */
enum { MEASURE_EVERY = 16, UNSEEN_NS = 300 };

/* ---- which module is this? ----------------------------------------------------------- */

/* Find a module by open addressing. Keys are addresses of live modules: a weak reference of
 * module_names.py makes us forget each one in time. */
static sonde_torch_module *find_module(sonde_torch_modules *modules, const void *address)
{
    if (modules->room == 0)
        return NULL;
    size_t at = sonde_torch_hash(address);
    for (;; at++) {
        sonde_torch_module *one = &modules->slots[at & (modules->room - 1)];
        if (one->address == address)
            return one;
        if (one->address == NULL)
            return NULL;
    }
}

/* Ask for the name of a module, once. NULL: it has none; if an exception is set, a signal handler
 * of the program raised it in there, and the exception is the program's. */
static sonde_torch_module *name_module(sonde_TorchTracer *self, PyObject *module,
                                       const sonde_torch_lane *lane)
{
    uint32_t parent = 0;
    if (lane->open != SONDE_TORCH_NONE)
        parent = sonde_torch_at(lane, lane->open)->key;
    PyObject *number = PyLong_FromUnsignedLong(parent);
    PyObject *args[] = {module, number};
    Py_INCREF(self);
    PyObject *result = number == NULL ? NULL : PyObject_Vectorcall(self->name, args, 2, NULL);
    Py_XDECREF(number);
    Py_XDECREF(result);
    sonde_torch_module *found = NULL;
    if (result != NULL && sonde_torch_tracer == self)
        found = find_module(&self->modules, module);
    Py_DECREF(self);
    return found;
}

/* ---- one call -------------------------------------------------------------------------- */

typedef struct {
    sonde_torch_lane *lane;
    uint64_t number;
    uint32_t epoch;
    int measured;
} entry;

static uint32_t describe_inputs(sonde_TorchTracer *self, PyObject *const *args, size_t nargsf,
                                PyObject *kwnames)
{
    PyObject *describe = Py_NewRef(self->describe), *texts = Py_NewRef(self->text);
    PyObject *text = PyObject_Vectorcall(describe, args + 1,
                                         (size_t)PyVectorcall_NARGS(nargsf) - 1, kwnames);
    int64_t id = text == NULL || text == Py_None ? 0 : sonde_text_id(texts, text);
    Py_XDECREF(text);
    Py_DECREF(describe);
    Py_DECREF(texts);
    PyErr_Clear();
    return id < 0 ? 0 : (uint32_t)id;
}

/* Return autograd's number if nodes of this step are seen, else the last one known: then no node
 * lies between two calls. */
static uint64_t read_sequence(sonde_torch_lane *lane)
{
    if (sonde_torch.has_nodes && sonde_torch.sequence != NULL)
        lane->sequence = sonde_torch.sequence();
    return lane->sequence;
}

/* Return the stage: that of the call around it, unless a backward pass was begun in between;
 * otherwise torch is asked. */
static uint8_t find_stage(const sonde_torch_lane *lane)
{
    if (lane->open != SONDE_TORCH_NONE && lane->running == 0 && lane->nodes_n == 0)
        return sonde_torch_at(lane, lane->open)->stage;
    return sonde_torch_in_backward(lane) ? SONDE_TORCH_RECOMPUTE : SONDE_TORCH_FORWARD;
}

static void time_device(sonde_torch_lane *lane, sonde_torch_call *call)
{
    int device = sonde_torch.device;
    if (!(device & SONDE_DEVICE_FORWARD))
        return;
    call->flags = SONDE_DEVICE_IS_BY_HOST(device, SONDE_DEVICE_FORWARD) ? SONDE_TORCH_BY_HOST : 0;
    if (call->flags == 0 || call->depth == 0 || sonde_torch_is_checked(lane->head))
        call->events[0] = sonde_torch_event_near(lane);
}

/* Enter a call if it is to be recorded. Returns 1 if it was entered, 0 if not, -1 with an
 * exception of the program. */
static int enter(PyObject *const *args, size_t nargsf, PyObject *kwnames, sonde_torch_lane *lane,
                 entry *to)
{
    sonde_TorchTracer *self = sonde_torch_tracer;
    uint16_t depth = 0;
    if (lane->open != SONDE_TORCH_NONE)
        depth = (uint16_t)(sonde_torch_at(lane, lane->open)->depth + 1);
    if (depth >= sonde_torch.depth || sonde_torch_need_calls(lane) < 0)
        return 0;
    to->measured = lane->measured_n++ % MEASURE_EVERY == 0;
    int64_t begin_ns = to->measured ? sonde_clock_ns() : 0;
    sonde_torch_module *module = find_module(&self->modules, args[0]);
    if (module == NULL) {
        module = name_module(self, args[0], lane);
        to->measured = 0;
        if (module == NULL)
            return PyErr_Occurred() ? -1 : 0;
    }
    if (module->ignored)
        return 0;
    /* Acquire: the writer has read the calls that these places held before. */
    if (lane->head - sonde_load_acquire(&lane->settled) >= SONDE_TORCH_CALLS) {
        sonde_torch.lost++;
        return 0;
    }
    sonde_torch_call *call = sonde_torch_at(lane, lane->head);
    *call = (sonde_torch_call){
        .step = sonde_torch.step,
        .parent = lane->open,
        .module = module->name,
        .key = module->key,
        .depth = depth,
        .stage = find_stage(lane),
        .events = {-1, -1},
        .back_device_s = -1,
        .back_device = -1,
        .seq_enter = read_sequence(lane),
    };
    if (self->describe != NULL) {
        call->shapes = describe_inputs(self, args, nargsf, kwnames);
        if (sonde_torch_tracer != self || sonde_torch_at(lane, lane->head) != call)
            return 0; /* the Python code that names modules stopped us, or called modules */
    }
    time_device(lane, call);
    to->lane = lane;
    to->number = lane->head;
    to->epoch = sonde_torch.epoch;
    lane->open = to->number;
    call->enter_ns = sonde_clock_ns();
    /* Release: a call that is there has its fields. */
    sonde_store_release(&lane->head, lane->head + 1);
    if (lane->head % (SONDE_TORCH_CALLS / 4) == 0)
        sonde_torch_hurry(); /* a fast program fills its room sooner than the writer wakes up */
    if (to->measured)
        sonde_add_relaxed(&sonde_torch.direct_ns, (call->enter_ns - begin_ns + UNSEEN_NS) * MEASURE_EVERY);
    return 1;
}

/* Returns 0, or -1 with an exception of the program. */
static int look_at_memory(sonde_TorchTracer *self, sonde_torch_call *call)
{
    PyObject *memory = Py_NewRef(self->memory);
    PyObject *three = PyObject_CallNoArgs(memory);
    Py_DECREF(memory);
    if (three == NULL)
        return -1;
    double values[3];
    if (PyTuple_Check(three) &&
        PyArg_ParseTuple(three, "ddd", &values[0], &values[1], &values[2])) {
        for (int i = 0; i < 3; i++)
            call->memory[i] = (float)values[i];
        call->flags |= SONDE_TORCH_MEMORY;
    }
    Py_DECREF(three);
    PyErr_Clear();
    return 0;
}

/* Returns 0, or -1 with an exception of the program. */
static int leave(const entry *from, int raised)
{
    int64_t now_ns = sonde_clock_ns();
    sonde_torch_lane *lane = from->lane;
    if (lane->epoch != from->epoch || sonde_torch.epoch != from->epoch)
        return 0; /* the tracer that this call was for is gone */
    sonde_torch_call *call = sonde_torch_at(lane, from->number);
    if (call->events[0] >= 0)
        call->events[1] = sonde_torch_event_near(lane);
    call->seq_exit = read_sequence(lane);
    call->flags |= raised ? SONDE_TORCH_RAISED : 0;
    int64_t took_ns = now_ns - call->enter_ns;
    lane->open = call->parent;
    if (call->parent != SONDE_TORCH_NONE)
        sonde_torch_at(lane, call->parent)->inner_ns += took_ns;
    else if (lane->nodes_n > 0 && lane->nodes_n <= SONDE_TORCH_DEEP)
        lane->nodes[lane->nodes_n - 1].inner_ns += took_ns; /* recompute, inside a node */
    /* While an exception is on its way, no other Python code may run. And a tracer that is being
     * stopped writes its last rows while other threads are in their modules. */
    int status = 0;
    if (!raised && call->depth < sonde_torch.memory_depth && sonde_torch_tracer != NULL)
        status = look_at_memory(sonde_torch_tracer, call);
    else if (sonde_torch_tracer != NULL && sonde_torch_recent_memory(sonde_torch_tracer, now_ns, call->memory) == 0)
        call->flags |= SONDE_TORCH_MEMORY;
    /* Release: a call that has ended has its fields. */
    sonde_store_release(&call->exit_ns, now_ns);
    sonde_torch.calls++;
    if (from->measured)
        sonde_add_relaxed(&sonde_torch.direct_ns, (sonde_clock_ns() - now_ns + UNSEEN_NS) * MEASURE_EVERY);
    return status;
}

static inline int is_on(void)
{
    return sonde_torch.on && sonde_load_relaxed(sonde_torch.allowed);
}

/* ---- calls that the program makes itself ------------------------------------------------- */

/* May this call of a model end the step? */
static int may_end(const PyObject *module, const sonde_torch_lane *lane)
{
    if (sonde_torch.first == NULL || sonde_torch.roots == 0)
        return 0;
    /* The model that began the step may never be called again, by that thread or at all, and what
     * was trained before may go on without an optimizer. So a step that takes up half of the room
     * ends. */
    if (sonde_torch.calls >= SONDE_TORCH_CALLS / 2 && !sonde_torch.had_backward)
        return 1;
    if ((sonde_torch.first != module && sonde_torch.first != &sonde_torch) ||
        (sonde_torch.lead != lane && !sonde_load_acquire(&sonde_torch.lead->ended)))
        return 0;
    if (sonde_torch.roots == 1)
        return 1;
    if (sonde_torch.had_backward)
        return 0;
    PyObject *grad = PyObject_CallNoArgs(sonde_torch_tracer->is_grad);
    int is_training = grad != Py_False;
    Py_XDECREF(grad);
    PyErr_Clear();
    return !is_training;
}

/* The model that began the step is called again: where nothing else ends steps, this does.
 * Returns 0, or -1 with an exception of the program. */
static int begin_root(PyObject *module, sonde_torch_lane *lane)
{
    if (may_end(module, lane) && sonde_torch_tracer != NULL) {
        PyObject *end = Py_NewRef(sonde_torch_tracer->end), *result = PyObject_CallNoArgs(end);
        Py_DECREF(end);
        Py_XDECREF(result);
        if (result == NULL)
            return -1;
    }
    if (sonde_torch.first == NULL) {
        sonde_torch.first = module;
        sonde_torch.lead = lane;
        sonde_torch.first_ns = sonde_clock_ns();
    }
    return 0;
}

/* Handle a call by the program itself; its time counts as forward whether it is recorded or not. */
static PyObject *call_root(PyObject *original, PyObject *const *args, size_t nargsf,
                           PyObject *kwnames, sonde_torch_lane *lane)
{
    if (begin_root(args[0], lane) < 0)
        return NULL;
    if (sonde_torch_tracer == NULL)
        return PyObject_Vectorcall(original, args, nargsf, kwnames);
    /* Greenlets leave calls in another order than they entered them. */
    lane->open = SONDE_TORCH_NONE;
    entry made;
    int recorded = is_on() ? enter(args, nargsf, kwnames, lane, &made) : 0;
    if (recorded < 0)
        return NULL;
    int64_t begin_ns = sonde_clock_ns();
    /* Read only now: Python code of ours ran, and another thread may have begun a new recording. */
    uint32_t epoch = lane->epoch;
    lane->passing++;
    PyObject *result = PyObject_Vectorcall(original, args, nargsf, kwnames);
    if (sonde_torch.epoch == epoch && lane->epoch == epoch) {
        lane->passing--;
        if (lane == sonde_torch.lead)
            sonde_torch.forward_ns += sonde_clock_ns() - begin_ns;
        if (recorded && leave(&made, result == NULL) < 0)
            Py_CLEAR(result);
    }
    return result;
}

static PyObject *call_module(PyObject *callable, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames)
{
    PyObject *original = ((sonde_TorchCall *)callable)->original;
    sonde_torch_lane *lane;
    if (sonde_torch_tracer == NULL || PyVectorcall_NARGS(nargsf) < 1 || (lane = sonde_torch_here()) == NULL)
        return PyObject_Vectorcall(original, args, nargsf, kwnames);
    if (lane->passing == 0 && !sonde_torch_in_backward(lane))
        return call_root(original, args, nargsf, kwnames, lane);
    entry made;
    int recorded = is_on() ? enter(args, nargsf, kwnames, lane, &made) : 0;
    if (recorded < 0)
        return NULL;
    PyObject *result = PyObject_Vectorcall(original, args, nargsf, kwnames);
    if (recorded && leave(&made, result == NULL) < 0)
        Py_CLEAR(result);
    return result;
}

/* ---- the descriptor ------------------------------------------------------------------------ */

static PyObject *call_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    PyObject *original = ((sonde_TorchCall *)self)->original;
    if (object == NULL || object == Py_None)
        return Py_NewRef(original);
    return PyMethod_New(original, object);
}

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *original;
    static char *names[] = {"original", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &original))
        return NULL;
    sonde_TorchCall *self = (sonde_TorchCall *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = call_module;
    self->original = Py_NewRef(original);
    return (PyObject *)self;
}

static int call_traverse(sonde_TorchCall *self, visitproc visit, void *arg)
{
    Py_VISIT(self->original);
    return 0;
}

static int call_clear(sonde_TorchCall *self)
{
    Py_CLEAR(self->original);
    return 0;
}

static void call_dealloc(sonde_TorchCall *self)
{
    PyObject_GC_UnTrack(self);
    (void)call_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *call_attribute(PyObject *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return found;
    PyErr_Clear();
    return PyObject_GetAttr(((sonde_TorchCall *)self)->original, name);
}

PyTypeObject sonde_TorchCallType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.TorchCall",
    .tp_basicsize = sizeof(sonde_TorchCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_doc = "TorchCall(original): a class attribute that records implicit calls; read as an attribute, it\n"
              "is the original.",
    .tp_new = call_new,
    .tp_dealloc = (destructor)call_dealloc,
    .tp_traverse = (traverseproc)call_traverse,
    .tp_clear = (inquiry)call_clear,
    .tp_vectorcall_offset = offsetof(sonde_TorchCall, call),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = call_get,
    .tp_getattro = call_attribute,
};
