/* What runs when a module is called.
 *
 * `module(x)` has CPython call the function `__call__` of its class by the function's vectorcall
 * pointer; we put ours there. Class and function stay the same objects, so torch.compile, fx,
 * pickle and others do not notice us. Calls from Python code to the function itself, such as
 * `super().__call__(x)`, do not come here in some versions of CPython and do in others, so a class
 * with a `__call__` of its own is seen there, and what that calls for the same module is left out.
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
    int is_own; /* through a `__call__` of the module's own class */
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

/* Is this what the module's own `__call__` calls for the same module? */
static int is_inside_own(const sonde_torch_lane *lane, uint32_t key)
{
    if (lane->open == SONDE_TORCH_NONE)
        return 0;
    const sonde_torch_call *open = sonde_torch_at(lane, lane->open);
    return open->key == key && open->flags & SONDE_TORCH_OWN;
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
    if (module->ignored || is_inside_own(lane, module->key))
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
    call->flags |= to->is_own ? SONDE_TORCH_OWN : 0;
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

/* A call belongs to the call around it or, if that began a backward pass in between, to a node of
 * that pass: then it is recompute. */
static void add_to_outside(sonde_torch_lane *lane, uint64_t parent, int64_t took_ns)
{
    int is_deep = lane->nodes_n > 0 && lane->nodes_n <= SONDE_TORCH_DEEP;
    sonde_torch_node *node = is_deep ? &lane->nodes[lane->nodes_n - 1] : NULL;
    sonde_torch_call *around = parent == SONDE_TORCH_NONE ? NULL : sonde_torch_at(lane, parent);
    if (around != NULL && (node == NULL || node->begin_ns < around->enter_ns))
        around->inner_ns += took_ns;
    else if (node != NULL)
        node->inner_ns += took_ns;
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
    add_to_outside(lane, call->parent, took_ns);
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

static vectorcallfunc call_python; /* how CPython calls a function that is written in Python */
static PyObject *base_call;        /* the `__call__` of nn.Module */
static PyTypeObject *module_type;  /* nn.Module */

/* Handle a call by the program itself; its time counts as forward whether it is recorded or not. */
static PyObject *call_root(PyObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                           sonde_torch_lane *lane)
{
    if (sonde_torch_begin_root(args[0], lane) < 0)
        return NULL;
    if (sonde_torch_tracer == NULL)
        return call_python(function, args, nargsf, kwnames);
    /* Greenlets leave calls in another order than they entered them. */
    lane->open = SONDE_TORCH_NONE;
    entry made = {.is_own = function != base_call};
    int recorded = is_on() ? enter(args, nargsf, kwnames, lane, &made) : 0;
    if (recorded < 0)
        return NULL;
    if (lane == sonde_torch.lead) {
        sonde_torch.forward_since_ns = sonde_clock_ns();
        sonde_torch.models++;
    }
    /* Read only now: Python code of ours ran, and another thread may have begun a new recording. */
    uint32_t epoch = lane->epoch;
    lane->passing++;
    PyObject *result = call_python(function, args, nargsf, kwnames);
    if (sonde_torch.epoch == epoch && lane->epoch == epoch) {
        lane->passing--;
        if (lane == sonde_torch.lead && sonde_torch.forward_since_ns != 0) {
            sonde_torch.forward_ns += sonde_clock_ns() - sonde_torch.forward_since_ns;
            sonde_torch.forward_since_ns = 0;
        }
        if (recorded && leave(&made, result == NULL) < 0)
            Py_CLEAR(result);
    }
    return result;
}

static PyObject *call_module(PyObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    sonde_torch_lane *lane;
    if (sonde_torch_tracer == NULL || PyVectorcall_NARGS(nargsf) < 1 ||
        !PyType_IsSubtype(Py_TYPE(args[0]), module_type) || (lane = sonde_torch_here()) == NULL)
        return call_python(function, args, nargsf, kwnames);
    if (lane->passing == 0 && !sonde_torch_in_backward(lane))
        return call_root(function, args, nargsf, kwnames, lane);
    entry made = {.is_own = function != base_call};
    int recorded = is_on() ? enter(args, nargsf, kwnames, lane, &made) : 0;
    if (recorded < 0)
        return NULL;
    PyObject *result = call_python(function, args, nargsf, kwnames);
    if (recorded && leave(&made, result == NULL) < 0)
        Py_CLEAR(result);
    return result;
}

/* ---- the functions that are seen ------------------------------------------------------------- */

static void set_vectorcall(PyFunctionObject *function, vectorcallfunc call)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyFunction_SetVectorcall(function, call);
#else
    function->vectorcall = call;
#if PY_VERSION_HEX >= 0x030B0000
    function->func_version = 0; /* calls that were specialized for it are not any more */
#endif
#endif
}

/* torch_see_calls(type, function): see the calls of modules, which are of this type, through this
 * function. */
static PyObject *torch_see_calls(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *type;
    PyObject *function;
    if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &type, &PyFunction_Type, &function))
        return NULL;
    PyFunctionObject *one = (PyFunctionObject *)function;
    if (one->vectorcall == call_module)
        Py_RETURN_NONE;
    if (call_python == NULL) {
        call_python = one->vectorcall;
        base_call = Py_NewRef(function);
        module_type = (PyTypeObject *)Py_NewRef(type);
    }
    if (one->vectorcall == call_python) /* otherwise somebody else is there */
        set_vectorcall(one, call_module);
    Py_RETURN_NONE;
}

static PyObject *torch_leave_calls(PyObject *Py_UNUSED(module), PyObject *function)
{
    if (PyFunction_Check(function) && ((PyFunctionObject *)function)->vectorcall == call_module)
        set_vectorcall((PyFunctionObject *)function, call_python);
    Py_RETURN_NONE;
}

PyMethodDef sonde_module_call_methods[] = {
    {"torch_see_calls", torch_see_calls, METH_VARARGS,
     "torch_see_calls(type, function): see the calls of modules, which are of this type, through this\n"
     "function; the first one is that of nn.Module."},
    {"torch_leave_calls", torch_leave_calls, METH_O,
     "torch_leave_calls(function): have it called as if we were not there."},
    {NULL, NULL, 0, NULL},
};
