/* TorchStepEnd: from one step to the next.
 *
 * It is called at the ends of steps, writes the rows of the step, and decides what is recorded of
 * the next one. After a step nothing of ours is in any cache, and a line of Python then takes a
 * microsecond. So all that every step needs is done here, and Python is called only for what is
 * rare, and to judge several steps at once.
 */
#include "torch/step_end.h"

#include <string.h>
#include <structmember.h>

/* Costs that the recording itself cannot see: a busy device waits for each event, and torch reports
 * each node of autograd (measured on an H200). */
enum { EVENT_NS = 3000, NODE_NS = 700 };
enum { LOOK_EVERY = 64 };                     /* in steps; a change of nn.Module is seen at once */
enum { MEMORY_EVERY = 16, MEMORY_DEPTH = 2 }; /* in steps: how often modules' memory is read */
enum { FORWARD = SONDE_DEVICE_FORWARD, BACKWARD = SONDE_DEVICE_BACKWARD };
enum { WATCH_EVERY = 64 };                    /* in steps; then a device that keeps up has all events */
enum { ALTERNATELY = 1 };                     /* one direction at a time; otherwise both */
#define MOST_NS INT64_C(1000000000) /* of steps are judged together, or a batch of them */
/* Judging may take one part in so many of the time, or steps of some microseconds, as those of a tiny model that is
 * asked in a loop, would cost more to judge than to record: then it rests for a while, but never for longer than
 * MOST_NS, for it may only have been slow because another program had the processor. */
enum { REST = 400 };

/* ---- what is recorded of the next step ------------------------------------------------------ */

/* Choose what is timed on the device. Within a budget that is one direction at a time: each event
 * makes a busy device wait. */
static int choose_device(sonde_TorchStepEnd *self)
{
    int keeps = sonde_torch_keeps_pace(), device = 0;
    for (int way = FORWARD; way <= BACKWARD; way *= 2) {
        int is_timed = self->device != ALTERNATELY || self->side == way;
        if (keeps & way && (++self->unwatched[way] < WATCH_EVERY || !is_timed)) {
            device |= way | way * SONDE_DEVICE_BY_HOST;
        } else if (is_timed) {
            device |= way;
            self->unwatched[way] = 0;
        }
    }
    self->side ^= FORWARD | BACKWARD;
    return device;
}

static void begin_step(sonde_TorchStepEnd *self, int64_t end_ns, sonde_torch_sums *ended)
{
    const sonde_Steps *steps = self->steps;
    self->plan = steps->whole || steps->profiled ? SONDE_PLAN_WHOLE : sonde_torch_choose(steps->number, &self->level);
    int detail = self->details[self->plan];
    sonde_torch_wish wish = self->wishes[self->plan];
    if (detail && self->device)
        wish.device = choose_device(self);
    if (self->observes)
        sonde_torch_see_nodes(detail, (wish.device & (BACKWARD | BACKWARD * SONDE_DEVICE_BY_HOST)) == BACKWARD);
    wish.memory_depth = steps->number % MEMORY_EVERY == MEMORY_EVERY / 2 ? MEMORY_DEPTH : 0;
    int is_by_root = sonde_step_is(steps->last, "root") || sonde_step_is(steps->last, "");
    wish.roots = is_by_root ? 1 : 2;
    sonde_torch_begin(self->tracer, steps->number, end_ns, &wish, ended);
}

/* ---- what is judged of it -------------------------------------------------------------------------- */

static PyObject *take_noted(sonde_TorchStepEnd *self)
{
    /* Making objects may run a garbage collection, and that may run any code: so take the notes
     * first. */
    sonde_step_end_noted taken[SONDE_STEP_END_BATCH];
    unsigned n = self->noted_n;
    memcpy(taken, self->noted, n * sizeof *taken);
    self->noted_n = 0;
    self->noted_ns = 0;
    PyObject *list = PyList_New(n);
    for (unsigned i = 0; i < n; i++) {
        PyObject *one = list == NULL ? NULL
                                     : Py_BuildValue("LLOL", taken[i].step, (long long)taken[i].duration_ns,
                                                     taken[i].plan, (long long)taken[i].spent_ns);
        Py_DECREF(taken[i].plan);
        if (one == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, one);
    }
    return list;
}

static int judge(sonde_TorchStepEnd *self, int64_t end_ns)
{
    int64_t begin_ns = sonde_clock_ns(), noted_ns = self->noted_ns, rested_ns = self->rested_ns;
    int64_t n = self->noted_n, all_n = n + self->rested_n;
    self->rested_ns = self->rested_n = 0;
    PyObject *list = take_noted(self);
    PyObject *result =
        list == NULL ? NULL : PyObject_CallFunction(self->judge, "OLL", list, (long long)end_ns, (long long)rested_ns);
    Py_XDECREF(list);
    Py_XDECREF(result);
    int64_t now_ns = sonde_clock_ns(), rest_ns = (now_ns - begin_ns) * REST - noted_ns;
    /* While each step is judged on its own, the time that takes says nothing about later steps. */
    self->share_ns = n < 2 ? 0 : (now_ns - begin_ns) / all_n;
    self->rest_ns = n < 2 ? 0 : now_ns + (rest_ns < MOST_NS ? rest_ns : MOST_NS);
    return result == NULL ? -1 : 0;
}

static int note(sonde_TorchStepEnd *self, const sonde_Step *step, int64_t begin_ns, int plan, int64_t spent_ns)
{
    int64_t duration_ns = step->end_ns - begin_ns;
    if (duration_ns <= 0)
        return 0;
    if (step->end_ns < self->rest_ns) {
        self->rested_ns += duration_ns;
        self->rested_n++;
        return 0;
    }
    self->noted[self->noted_n++] =
        (sonde_step_end_noted){step->number, duration_ns, spent_ns + self->share_ns, Py_NewRef(self->plans[plan])};
    self->noted_ns += duration_ns;
    int is_due = self->noted_n >= self->batch || self->noted_n == SONDE_STEP_END_BATCH || self->noted_ns >= MOST_NS;
    return is_due ? judge(self, step->end_ns) : 0;
}

/* ---- the end of a step ----------------------------------------------------------------------------------- */

static int call_none(PyObject *call)
{
    PyObject *result = PyObject_CallNoArgs(call);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int call_gradient_times(sonde_TorchStepEnd *self, long long step, PyObject *begins)
{
    PyObject *result = PyObject_CallFunction(self->gradient_times, "LO", step, begins);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Returns 0, or -1 with an exception of the program; our own failures here are guarded. */
static int end_step(sonde_TorchStepEnd *self, const sonde_Step *step)
{
    int64_t begin_ns = sonde_clock_ns(), begun_ns;
    int status = step->number % LOOK_EVERY == 0 ? call_none(self->look) : 0;
    PyObject *begins = self->gradient_times == Py_None ? NULL : sonde_torch_begins();
    if (status < 0 || (self->gradient_times != Py_None && begins == NULL))
        return -1;
    int plan = self->plan, on = self->wishes[plan].on;
    sonde_torch_sums sums;
    begin_step(self, step->end_ns, &sums);
    begun_ns = sonde_step_end_write_step(self, step, &sums, on);
    if (begun_ns < 0 || sonde_step_end_write_optimizers(self, step->number, on, 2 * sums.calls) < 0)
        status = -1;
    if (status == 0 && begins != NULL)
        status = call_gradient_times(self, step->number, begins);
    Py_XDECREF(begins);
    if (status == 0 && self->tracer->is_fresh) {
        self->tracer->is_fresh = 0;
        status = call_none(self->describe);
    }
    const sonde_control *page = self->tracer->page;
    if (status < 0 || !sonde_load_relaxed(&page->on))
        return status;
    if (sonde_torch_memory_at(self->memory, step->number) < 0)
        return -1;
    /* The duration of a step that was paused, wholly or in part, does not show what recording costs. */
    if (sonde_load_relaxed(&page->resumed_t_ns) > begun_ns)
        return 0;
    int64_t spent_ns = sums.direct_ns + (int64_t)sums.events * EVENT_NS +
                       (int64_t)sums.nodes * NODE_NS + sonde_clock_ns() - begin_ns;
    return note(self, step, begun_ns, plan, spent_ns);
}

static PyObject *end_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *Py_UNUSED(names))
{
    sonde_TorchStepEnd *self = (sonde_TorchStepEnd *)callable;
    if (PyVectorcall_NARGS(nargsf) != 1 || !Py_IS_TYPE(args[0], &sonde_StepType))
        return PyErr_Format(PyExc_TypeError, "expected a Step");
    int failed = sonde_host_failed(self->host);
    if (failed)
        return failed < 0 ? NULL : Py_NewRef(Py_None);
    return end_step(self, (sonde_Step *)args[0]) < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- the type ------------------------------------------------------------------------------------------------ */

static int read_plan(sonde_TorchStepEnd *self, int at, PyObject *plan)
{
    static const char *names[] = {"on", "depth", "detail"};
    long values[3];
    for (int i = 0; i < 3; i++) {
        PyObject *value = PyObject_GetAttrString(plan, names[i]);
        values[i] = value == NULL ? -1 : PyLong_AsLong(value);
        Py_XDECREF(value);
        if (values[i] == -1 && PyErr_Occurred())
            return -1;
    }
    /* Calls above a depth are recorded; the plan's depth is included. */
    self->wishes[at] = (sonde_torch_wish){.on = (int)values[0], .depth = (int)values[1] + 1};
    self->details[at] = values[2] != 0;
    Py_XSETREF(self->plans[at], Py_NewRef(plan));
    return 0;
}

static PyObject *end_set_plans(sonde_TorchStepEnd *self, PyObject *args)
{
    PyObject *plans;
    sonde_torch_level level;
    if (!PyArg_ParseTuple(args, "O!pIII", &PyTuple_Type, &plans, &level.baseline, &level.every, &level.steps,
                          &level.detail))
        return NULL;
    if (PyTuple_GET_SIZE(plans) != SONDE_PLANS)
        return PyErr_Format(PyExc_ValueError, "expected %d plans", SONDE_PLANS);
    for (int i = 0; i < SONDE_PLANS; i++)
        if (read_plan(self, i, PyTuple_GET_ITEM(plans, i)) < 0)
            return NULL;
    self->level = level;
    Py_RETURN_NONE;
}

static PyObject *end_begin(sonde_TorchStepEnd *self, PyObject *Py_UNUSED(none))
{
    sonde_torch_sums before;
    begin_step(self, sonde_clock_ns(), &before);
    Py_RETURN_NONE;
}

static PyObject *end_finish(sonde_TorchStepEnd *self, PyObject *kind)
{
    sonde_torch_sums sums;
    sonde_torch_wish nothing = {.depth = 1};
    int on = self->wishes[self->plan].on;
    sonde_Step last = {.number = self->steps->number, .begin_ns = self->steps->begin_ns,
                       .end_ns = sonde_clock_ns(), .kind = kind};
    sonde_torch_begin(self->tracer, last.number, last.end_ns, &nothing, &sums);
    if (sums.first_ns != 0 && sonde_step_end_write_step(self, &last, &sums, on) < 0)
        return NULL;
    return take_noted(self);
}

static PyObject *end_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *host, *text, *tracer, *steps, *optimizers, *memory, *step, *trace, *look, *describe, *judged;
    static char *names[] = {"host", "text", "tracer", "steps", "optimizers", "memory", "step", "trace",
                            "look", "describe", "judge", NULL};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "OO!O!O!O!O!O!O!OOO", names, &host, &sonde_TextType, &text,
            &sonde_TorchTracerType, &tracer, &sonde_StepsType, &steps, &sonde_TorchOptimizersType,
            &optimizers, &sonde_TorchMemoryType, &memory, &sonde_WriterType, &step, &sonde_WriterType,
            &trace, &look, &describe, &judged))
        return NULL;
    PyObject *word = PyUnicode_FromString("step");
    int64_t stage = word == NULL ? -1 : sonde_text_id(text, word);
    Py_XDECREF(word);
    if (stage < 0 || sonde_writer_is(step, SONDE_TORCH_STEP) < 0 ||
        sonde_writer_is(trace, SONDE_TORCH_TRACE) < 0)
        return NULL;
    sonde_TorchStepEnd *self = (sonde_TorchStepEnd *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = end_call;
    self->host = Py_NewRef(host);
    self->text = Py_NewRef(text);
    self->tracer = (sonde_TorchTracer *)Py_NewRef(tracer);
    self->steps = (sonde_Steps *)Py_NewRef(steps);
    self->optimizers = (sonde_TorchOptimizers *)Py_NewRef(optimizers);
    self->memory = Py_NewRef(memory);
    self->emit_step = Py_NewRef(step);
    self->emit_trace = Py_NewRef(trace);
    self->look = Py_NewRef(look);
    self->describe = Py_NewRef(describe);
    self->judge = Py_NewRef(judged);
    self->gradient_times = Py_NewRef(Py_None);
    self->loaders = Py_NewRef(Py_None);
    self->stage = (uint32_t)stage;
    self->side = FORWARD;
    self->batch = 1;
    return (PyObject *)self;
}

static int end_traverse(sonde_TorchStepEnd *self, visitproc visit, void *arg)
{
    Py_VISIT(self->host);
    Py_VISIT(self->tracer);
    Py_VISIT(self->steps);
    Py_VISIT(self->optimizers);
    Py_VISIT(self->memory);
    Py_VISIT(self->look);
    Py_VISIT(self->describe);
    Py_VISIT(self->judge);
    Py_VISIT(self->gradient_times);
    Py_VISIT(self->loaders);
    return 0;
}

static void end_dealloc(sonde_TorchStepEnd *self)
{
    PyObject_GC_UnTrack(self);
    PyObject **held[] = {&self->host, &self->text, &self->memory, &self->emit_step, &self->emit_trace,
                         &self->look, &self->describe, &self->judge, &self->gradient_times, &self->loaders};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        Py_CLEAR(*held[i]);
    Py_CLEAR(self->tracer);
    Py_CLEAR(self->steps);
    Py_CLEAR(self->optimizers);
    for (int i = 0; i < SONDE_PLANS; i++)
        Py_CLEAR(self->plans[i]);
    for (unsigned i = 0; i < self->noted_n; i++)
        Py_CLEAR(self->noted[i].plan);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *end_watch(sonde_TorchStepEnd *self, PyObject *loaders)
{
    if (loaders != Py_None && !Py_IS_TYPE(loaders, &sonde_TorchNextType))
        return PyErr_Format(PyExc_TypeError, "expected a TorchNext or None");
    Py_SETREF(self->loaders, Py_NewRef(loaders));
    Py_RETURN_NONE;
}

static PyMethodDef end_methods[] = {
    {"set_plans", (PyCFunction)end_set_plans, METH_VARARGS,
     "set_plans(plans, baseline, every, steps, detail): set what is recorded, and of which of the steps to\n"
     "come."},
    {"watch", (PyCFunction)end_watch, METH_O, "watch(next): set the TorchNext through which batches come; or None."},
    {"begin", (PyCFunction)end_begin, METH_NOARGS, "Record the current step from here on."},
    {"finish", (PyCFunction)end_finish, METH_O,
     "finish(kind): end the current step as it is; returns the steps that were not judged yet."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef end_members[] = {
    {"observes", T_INT, offsetof(sonde_TorchStepEnd, observes), 0, "Whether nodes of autograd are seen."},
    {"device", T_INT, offsetof(sonde_TorchStepEnd, device), 0,
     "0: no device is timed; 1: one direction in each step; 2: both."},
    {"batch", T_UINT, offsetof(sonde_TorchStepEnd, batch), 0, "How many steps are judged at once; at most 32."},
    {"gradient_times", T_OBJECT_EX, offsetof(sonde_TorchStepEnd, gradient_times), 0, "gradient_times(step, begins), or None."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject sonde_TorchStepEndType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.TorchStepEnd",
    .tp_basicsize = sizeof(sonde_TorchStepEnd),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = "TorchStepEnd(…): call it with a step that has ended.",
    .tp_new = end_new,
    .tp_dealloc = (destructor)end_dealloc,
    .tp_traverse = (traverseproc)end_traverse,
    .tp_vectorcall_offset = offsetof(sonde_TorchStepEnd, call),
    .tp_call = PyVectorcall_Call,
    .tp_methods = end_methods,
    .tp_members = end_members,
};
