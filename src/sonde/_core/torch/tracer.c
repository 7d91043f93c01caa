/* TorchTracer: one recording of torch's modules. */
#include "torch/step_end.h"

#include <string.h>

#include <stdlib.h>

static const char gone; /* the address of a module that was forgotten */
static uint32_t epochs;

/* ---- modules ------------------------------------------------------------------------------- */

static sonde_torch_module *find_place(sonde_torch_modules *modules, const void *address)
{
    for (size_t at = sonde_torch_hash(address);; at++) {
        sonde_torch_module *one = &modules->slots[at & (modules->room - 1)];
        if (one->address == NULL || one->address == address)
            return one;
    }
}

static int grow(sonde_torch_modules *modules)
{
    size_t live = 0;
    for (size_t i = 0; i < modules->room; i++)
        live += modules->slots[i].address != NULL && modules->slots[i].address != &gone;
    /* Modules that are made anew in every step leave only free places behind. */
    sonde_torch_modules more = {.room = 256};
    while (more.room < live * 4)
        more.room *= 2;
    more.slots = calloc(more.room, sizeof *more.slots);
    if (more.slots == NULL)
        return -1;
    for (size_t i = 0; i < modules->room; i++) {
        const sonde_torch_module *one = &modules->slots[i];
        if (one->address != NULL && one->address != &gone) {
            *find_place(&more, one->address) = *one;
            more.used++;
        }
    }
    free(modules->slots);
    *modules = more;
    return 0;
}

static PyObject *tracer_add_module(sonde_TorchTracer *self, PyObject *args)
{
    PyObject *module, *name;
    unsigned key;
    int ignored;
    if (!PyArg_ParseTuple(args, "OUIp", &module, &name, &key, &ignored))
        return NULL;
    int64_t id = sonde_text_id(self->text, name);
    if (id < 0)
        return NULL;
    if (self->modules.used * 2 >= self->modules.room && grow(&self->modules) < 0)
        return PyErr_NoMemory();
    sonde_torch_module *one = find_place(&self->modules, module);
    if (one->address == NULL)
        self->modules.used++;
    *one = (sonde_torch_module){module, (uint32_t)id, key, ignored};
    self->is_fresh = 1;
    Py_RETURN_NONE;
}

static PyObject *tracer_forget(sonde_TorchTracer *self, PyObject *address)
{
    const void *wanted = PyLong_AsVoidPtr(address);
    if (wanted == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    if (sonde_torch_tracer == self && sonde_torch.first == wanted)
        sonde_torch.first = &sonde_torch;
    if (self->modules.room > 0) {
        sonde_torch_module *one = find_place(&self->modules, wanted);
        if (one->address == wanted)
            one->address = &gone;
    }
    Py_RETURN_NONE;
}

/* ---- steps ------------------------------------------------------------------------------------ */

PyObject *sonde_torch_begins(void)
{
    PyObject *found = PyTuple_New(sonde_torch.begins_n);
    for (uint32_t i = 0; found != NULL && i < sonde_torch.begins_n; i++) {
        PyObject *one = PyLong_FromLongLong(sonde_torch.begins[i]);
        if (one == NULL)
            Py_CLEAR(found);
        else
            PyTuple_SET_ITEM(found, i, one);
    }
    return found;
}

/* Add what has passed since then, until the end of a step; the rest is the next one's. */
static void split_at(int64_t end_ns, int64_t *since_ns, int64_t *sum_ns)
{
    if (*since_ns == 0 || *since_ns >= end_ns)
        return;
    *sum_ns += end_ns - *since_ns;
    *since_ns = end_ns;
}

void sonde_torch_begin(sonde_TorchTracer *self, int64_t step, int64_t end_ns, const sonde_torch_wish *wish,
                       sonde_torch_sums *ended)
{
    sonde_torch_state *s = &sonde_torch;
    /* An optimizer inside a backward pass, or inside a module's forward, ends the step. */
    split_at(end_ns, &s->back_since_ns, &s->backward_ns);
    split_at(end_ns, &s->forward_since_ns, &s->forward_ns);
    *ended = (sonde_torch_sums){
        s->first_ns, s->forward_ns, s->backward_ns, sonde_load_relaxed(&s->owned_ns),
        sonde_load_relaxed(&s->unowned_ns), sonde_load_relaxed(&s->direct_ns), s->calls, s->lost,
        sonde_torch_events(), sonde_swap_relaxed(&s->nodes, 0), s->had_backward,
        s->models, s->begins_n};
    if (sonde_torch_tracer != self)
        return; /* another thread ended a step while this one was stopped */
    s->first = NULL;
    if (s->forward_since_ns == 0)
        s->lead = NULL;
    if (s->back_since_ns == 0)
        s->back_lead = NULL;
    s->first_ns = s->forward_ns = s->backward_ns = 0;
    sonde_store_relaxed(&s->owned_ns, 0);
    sonde_store_relaxed(&s->unowned_ns, 0);
    sonde_store_relaxed(&s->direct_ns, 0);
    s->calls = s->lost = s->begins_n = 0;
    s->models = s->forward_since_ns != 0; /* a call that goes on is the next step's, too */
    s->had_backward = s->back_since_ns != 0;
    s->on = wish->on;
    s->depth = (uint16_t)(wish->depth < 1 ? 1 : wish->depth > UINT16_MAX ? UINT16_MAX : wish->depth);
    s->device = wish->device;
    s->memory_depth = self->memory == NULL ? 0 : wish->memory_depth;
    s->roots = wish->roots;
    /* Release: the calls of the last step are visible before this. */
    sonde_store_release(&s->step, step);
}

/* A reading takes one to three microseconds, so there is at most one in this time. */
#define RECENT_NS 5000000

int sonde_torch_recent_memory(sonde_TorchTracer *self, int64_t now_ns, float values[3])
{
    if (self->process == NULL)
        return -1;
    if (self->recent_ns == 0 || now_ns - self->recent_ns >= RECENT_NS) {
        if (sonde_torch_memory_read(self->process, self->recent) < 0)
            return -1;
        self->recent_ns = now_ns;
    }
    memcpy(values, self->recent, sizeof self->recent);
    return 0;
}

/* ---- start and stop ------------------------------------------------------------------------------ */

static PyObject *tracer_start(sonde_TorchTracer *self, PyObject *Py_UNUSED(none))
{
    if (sonde_torch_tracer != NULL)
        return PyErr_Format(PyExc_RuntimeError, "torch is already being traced");
    uint32_t epoch = ++epochs;
    sonde_torch.epoch = epoch == 0 ? epochs = 1 : epoch;
    int status = sonde_torch_rows_start(&self->texts);
    if (status < 0) {
        sonde_torch.epoch = 0;
        return sonde_raise(status, "torch");
    }
    sonde_torch.back_lead = NULL;
    sonde_torch.back_since_ns = sonde_torch.forward_since_ns = 0;
    sonde_torch.lead = NULL;
    sonde_torch.runs = 0;
    sonde_torch.allowed = &self->page->on;
    sonde_torch_tracer = self;
    Py_RETURN_NONE;
}

static PyObject *tracer_stop(sonde_TorchTracer *self, PyObject *Py_UNUSED(none))
{
    if (sonde_torch_tracer == self) {
        sonde_torch_tracer = NULL;
        sonde_torch.on = sonde_torch.device = 0;
        Py_BEGIN_ALLOW_THREADS
        sonde_torch_rows_stop();
        Py_END_ALLOW_THREADS
        sonde_torch.epoch = 0;
    }
    Py_RETURN_NONE;
}

/* ---- the type ---------------------------------------------------------------------------------------- */

static int fill_texts(sonde_TorchTracer *self, PyObject *writer)
{
    static const char *stages[] = {"forward", "recompute", "backward"};
    self->map = sonde_writer_ring(writer, SONDE_TORCH_TRACE, &self->texts.ring);
    if (self->map == NULL)
        return -1;
    for (int i = 0; i < 3 + 64; i++) {
        PyObject *text = i < 3 ? PyUnicode_FromString(stages[i]) : PyUnicode_FromFormat("cuda:%d", i - 3);
        int64_t id = text == NULL ? -1 : sonde_text_id(self->text, text);
        Py_XDECREF(text);
        if (id < 0)
            return -1;
        *(i < 3 ? &self->texts.stages[i] : &self->texts.devices[i - 3]) = (uint32_t)id;
    }
    return 0;
}

static PyObject *keep(PyObject *object) { return object == Py_None ? NULL : Py_NewRef(object); }

static PyObject *tracer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *writer, *text, *page, *name, *end, *is_grad, *memory = Py_None, *describe = Py_None;
    static char *names[] = {"writer", "text", "page", "name", "end", "is_grad", "memory", "describe", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!OOO|OO", names, &sonde_WriterType, &writer,
                                     &sonde_TextType, &text, &sonde_MapType, &page, &name, &end, &is_grad, &memory, &describe))
        return NULL;
    sonde_TorchTracer *self = (sonde_TorchTracer *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->text = Py_NewRef(text);
    self->page_map = Py_NewRef(page);
    self->name = Py_NewRef(name);
    self->end = Py_NewRef(end);
    self->is_grad = Py_NewRef(is_grad);
    self->memory = keep(memory);
    self->describe = keep(describe);
    self->page = sonde_map_memory(page, 0);
    if (self->page == NULL || fill_texts(self, writer) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int tracer_traverse(sonde_TorchTracer *self, visitproc visit, void *arg)
{
    Py_VISIT(self->name);
    Py_VISIT(self->end);
    Py_VISIT(self->is_grad);
    Py_VISIT(self->memory);
    Py_VISIT(self->process);
    Py_VISIT(self->describe);
    return 0;
}

static int tracer_clear(sonde_TorchTracer *self)
{
    if (sonde_torch_tracer != self) { /* a running tracer needs them */
        Py_CLEAR(self->name);
        Py_CLEAR(self->end);
        Py_CLEAR(self->is_grad);
        Py_CLEAR(self->memory);
        Py_CLEAR(self->process);
        Py_CLEAR(self->describe);
    }
    return 0;
}

static void tracer_dealloc(sonde_TorchTracer *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(tracer_stop(self, NULL));
    (void)tracer_clear(self);
    Py_CLEAR(self->text);
    Py_CLEAR(self->map);
    Py_CLEAR(self->page_map);
    free(self->modules.slots);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *tracer_read_process(sonde_TorchTracer *self, PyObject *memory)
{
    if (memory != Py_None && !PyObject_TypeCheck(memory, &sonde_TorchMemoryType))
        return PyErr_Format(PyExc_TypeError, "a TorchMemory or None");
    Py_XSETREF(self->process, keep(memory));
    Py_RETURN_NONE;
}

static PyObject *tracer_describe(sonde_TorchTracer *self, PyObject *describe)
{
    Py_XSETREF(self->describe, keep(describe));
    Py_RETURN_NONE;
}

static PyMethodDef tracer_methods[] = {
    {"start", (PyCFunction)tracer_start, METH_NOARGS, "Record from now on, as a TorchStepEnd says."},
    {"stop", (PyCFunction)tracer_stop, METH_NOARGS, "Write what is left, and record no more."},
    {"add_module", (PyCFunction)tracer_add_module, METH_VARARGS,
     "add_module(module, name, key, ignored): set the name of a module."},
    {"forget", (PyCFunction)tracer_forget, METH_O, "forget(address): forget the module at this address, which is gone."},
    {"read_process", (PyCFunction)tracer_read_process, METH_O,
     "read_process(memory): the memory of every call is that of the process, from a TorchMemory; None:\n"
     "it is that of a device."},
    {"describe", (PyCFunction)tracer_describe, METH_O,
     "describe(call): describe(*inputs) -> text for input_shapes; None: not any more."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject sonde_TorchTracerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.TorchTracer",
    .tp_basicsize = sizeof(sonde_TorchTracer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "TorchTracer(writer, text, page, name, end, is_grad, memory=None, describe=None)",
    .tp_new = tracer_new,
    .tp_dealloc = (destructor)tracer_dealloc,
    .tp_traverse = (traverseproc)tracer_traverse,
    .tp_clear = (inquiry)tracer_clear,
    .tp_methods = tracer_methods,
};
