/* Calls of models by the program itself: where nothing else ends steps, such a call does. */
#include "torch/module_call.h"

static int has_grad(void)
{
    PyObject *grad = PyObject_CallNoArgs(sonde_torch_tracer->is_grad);
    int is_on = grad != Py_False;
    Py_XDECREF(grad);
    PyErr_Clear();
    return is_on;
}

static int is_training(PyObject *module)
{
    static PyObject *name;
    if (name == NULL)
        name = PyUnicode_InternFromString("training");
    PyObject *value = name == NULL ? NULL : PyObject_GetAttr(module, name);
    int is_on = value != Py_False;
    Py_XDECREF(value);
    PyErr_Clear();
    return is_on;
}

/* Does the program go over from training to evaluation with this call, or back? A model that is
 * called without gradients in a step of training, such as a teacher, gets no batch of its own and
 * stays in its mode. */
static int is_turn(PyObject *module, int is_first)
{
    if (sonde_torch.has_batch)
        return 1;
    return is_first && (sonde_torch.is_evaluating || is_training(module) != sonde_torch.is_training);
}

/* May this call of a model end the step? */
static int may_end(PyObject *module, const sonde_torch_lane *lane)
{
    sonde_torch_state *s = &sonde_torch;
    if (s->first == NULL || s->roots == 0 || sonde_in_closure())
        return 0; /* an optimizer may call its closure, and with it the model, several times */
    /* The model that began the step may never be called again, by that thread or at all, and what
     * was trained before may go on without an optimizer. So a step that takes up half of the room
     * ends. */
    if (s->calls >= SONDE_TORCH_CALLS / 2 && !s->had_backward)
        return 1;
    int is_first = s->first == module || s->first == &sonde_torch;
    if ((!is_first && !s->has_batch) || (s->lead != lane && !sonde_load_acquire(&s->lead->ended)))
        return 0;
    /* Of several optimizers, those after the lead may have gone backward before the first call. */
    int is_forward = s->begins_n == s->first_begins_n;
    int grad = has_grad(), ends = is_first && (s->roots == 1 || (!grad && is_forward));
    if (grad != s->has_grad)
        ends |= is_turn(module, is_first);
    if (ends)
        s->is_evaluating = !grad && !s->has_grad;
    return ends;
}

int sonde_torch_begin_root(PyObject *module, sonde_torch_lane *lane)
{
    if (may_end(module, lane) && sonde_torch_tracer != NULL) {
        PyObject *end = Py_NewRef(sonde_torch_tracer->end), *result = PyObject_CallNoArgs(end);
        Py_DECREF(end);
        Py_XDECREF(result);
        if (result == NULL)
            return -1;
    }
    if (sonde_torch.first == NULL && sonde_torch_tracer != NULL) {
        sonde_torch.first = module;
        sonde_torch.lead = lane;
        sonde_torch.first_ns = sonde_clock_ns();
        sonde_torch.first_begins_n = sonde_torch.begins_n;
        sonde_torch.has_grad = has_grad();
        sonde_torch.is_training = is_training(module);
    }
    if (sonde_torch.lead == lane)
        sonde_torch.has_batch = 0;
    return 0;
}
