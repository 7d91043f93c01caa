/* Has somebody changed a class in which we replaced something? */
#include "torch/module_call.h"

static int restore(void *Py_UNUSED(arg))
{
    sonde_TorchTracer *self = sonde_torch_tracer;
    if (self == NULL || self->restore == NULL)
        return 0;
    Py_INCREF(self);
    PyObject *result = PyObject_CallNoArgs(self->restore);
    Py_XDECREF(result);
    self->version = self->watched->tp_version_tag;
    sonde_store_release(&self->is_asked, 0);
    Py_DECREF(self);
    return result == NULL ? -1 : 0; /* a signal handler of the program raised it */
}

void sonde_torch_watch(void)
{
    /* Without the GIL: the tracer stays while this thread runs, and it is one number. */
    sonde_TorchTracer *self = sonde_torch_tracer;
    if (self == NULL || self->watched == NULL || sonde_load_acquire(&self->is_asked) ||
        sonde_load_relaxed(&self->watched->tp_version_tag) == self->version)
        return;
    sonde_store_release(&self->is_asked, 1);
    if (Py_AddPendingCall(restore, NULL) < 0)
        sonde_store_release(&self->is_asked, 0);
}
