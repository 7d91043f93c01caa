/* What stands in place of autograd's engine: it behaves like the engine, and knows when it runs. */
#include "torch/module_call.h"

typedef struct {
    PyObject_HEAD
    PyObject *engine;
    PyObject *run; /* a callable of ours, for `run_backward` */
} EngineObject;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *original; /* the engine's own method */
} RunObject;

static PyObject *run_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *original = ((RunObject *)callable)->original;
    sonde_torch_lane *lane = sonde_torch_tracer == NULL ? NULL : sonde_torch_here();
    if (lane == NULL || sonde_torch_in_backward(lane))
        return PyObject_Vectorcall(original, args, nargsf, kwnames);
    sonde_torch.had_backward = 1;
    uint32_t epoch = sonde_torch.epoch;
    int64_t begin_ns = sonde_clock_ns();
    /* Only the passes of one thread are counted, as in forward: those of several threads could
     * take longer than the step. */
    if (sonde_torch.back_lead == NULL)
        sonde_torch.back_lead = lane;
    if (sonde_torch.back_lead == lane)
        sonde_torch.back_since_ns = begin_ns;
    if (sonde_torch.begins_n < SONDE_TORCH_BEGINS)
        sonde_torch.begins[sonde_torch.begins_n++] = begin_ns;
    int64_t backward_pass = sonde_torch_pass_begin(begin_ns);
    lane->running++;
    sonde_torch.runs++;
    PyObject *result = PyObject_Vectorcall(original, args, nargsf, kwnames);
    if (sonde_torch.epoch == epoch) {
        sonde_torch_pass_end(backward_pass);
        lane->running--;
        sonde_torch.runs--;
        int64_t now_ns = sonde_clock_ns();
        if (lane == sonde_torch.back_lead && sonde_torch.back_since_ns != 0) {
            sonde_torch.backward_ns += now_ns - sonde_torch.back_since_ns;
            sonde_torch.back_since_ns = 0;
            if (lane == sonde_torch.lead && lane->passing > 0)
                sonde_torch.forward_ns -= now_ns - begin_ns; /* it ran inside a module's forward */
        }
        if (lane->passing > 0 && lane->open != SONDE_TORCH_NONE)
            sonde_torch_at(lane, lane->open)->inner_ns += now_ns - begin_ns;
        sonde_torch_close_spans(lane);
    }
    return result;
}

static void run_dealloc(RunObject *self)
{
    Py_CLEAR(self->original);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject run_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.TorchRun",
    .tp_basicsize = sizeof(RunObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_dealloc = (destructor)run_dealloc,
    .tp_vectorcall_offset = offsetof(RunObject, call),
    .tp_call = PyVectorcall_Call,
};

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *engine;
    static char *names[] = {"engine", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &engine) || PyType_Ready(&run_type) < 0)
        return NULL;
    PyObject *method = PyObject_GetAttrString(engine, "run_backward");
    if (method == NULL)
        return NULL;
    EngineObject *self = (EngineObject *)type->tp_alloc(type, 0);
    RunObject *run = PyObject_New(RunObject, &run_type);
    if (self == NULL || run == NULL) {
        Py_DECREF(method);
        Py_XDECREF(self);
        return NULL;
    }
    run->call = run_call;
    run->original = method;
    self->run = (PyObject *)run;
    self->engine = Py_NewRef(engine);
    return (PyObject *)self;
}

static void engine_dealloc(EngineObject *self)
{
    Py_CLEAR(self->engine);
    Py_CLEAR(self->run);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *engine_attribute(PyObject *object, PyObject *name)
{
    EngineObject *self = (EngineObject *)object;
    if (PyUnicode_CompareWithASCIIString(name, "run_backward") == 0)
        return Py_NewRef(self->run);
    return PyObject_GetAttr(self->engine, name);
}

static int engine_set_attribute(PyObject *object, PyObject *name, PyObject *value)
{
    return PyObject_SetAttr(((EngineObject *)object)->engine, name, value);
}

PyTypeObject sonde_TorchEngineType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.TorchEngine",
    .tp_basicsize = sizeof(EngineObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "TorchEngine(engine): stands in for the engine and measures backward passes.",
    .tp_new = engine_new,
    .tp_dealloc = (destructor)engine_dealloc,
    .tp_getattro = engine_attribute,
    .tp_setattro = engine_set_attribute,
};
