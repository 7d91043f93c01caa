/* CallTracer: counts and times every call of the program.
 *
 * Its handlers run inside the program's calls. They run no code of the program and
 * never release the GIL, so no other event, start or stop comes in between.
 */
#include "calls/hook.h"

#include <stdlib.h>

/* ---- publication on time -------------------------------------------------------------- */

static void set_alarm(int64_t wait_ns)
{
    sonde_moment now = sonde_read_moment();
    sonde_rate rate = sonde_ticks_rate(&sonde_calls.begin, &now);
    /* On x86 the rate is not known in the first moment. 1 GHz is slower than any, so the first
     * alarm comes early, and the next one is right. */
    sonde_rate reverse = rate.ns < 1000 ? (sonde_rate){1, 1} : (sonde_rate){rate.ticks, rate.ns};
    sonde_calls.publish_at = now.ticks + sonde_ticks_to_ns(reverse, wait_ns);
}

static void publish_due(void)
{
    sonde_CallTracer *self = sonde_call_tracer;
    int64_t wait_ns = self->due_ns - sonde_clock_ns();
    if (wait_ns <= 0) {
        self->due_ns = sonde_clock_ns() + self->every_ns;
        wait_ns = self->every_ns;
        if (sonde_publish(self->rows, self->publications) < 0)
            PyErr_Clear();
    }
    set_alarm(wait_ns);
}

/* ---- start and stop ---------------------------------------------------------------------- */

/* Return the frames of a thread from the innermost on, as new references; as many as there is
 * memory for. */
static PyFrameObject **list_frames(PyFrameObject *innermost, Py_ssize_t *depth)
{
    PyFrameObject **frames = NULL;
    Py_ssize_t room = 0;
    *depth = 0;
    for (PyFrameObject *frame = (PyFrameObject *)Py_NewRef(innermost); frame != NULL;) {
        if (*depth == room) {
            PyFrameObject **more = realloc(frames, (size_t)(room + 256) * sizeof *frames);
            if (more == NULL) {
                Py_DECREF(frame);
                break;
            }
            frames = more;
            room += 256;
        }
        frames[(*depth)++] = frame;
        frame = PyFrame_GetBack(frame);
    }
    return frames;
}

static int is_ours(const sonde_CallTracer *self, PyCodeObject *code)
{
    /* The functions that decorate.py wraps around the program's have this name. */
    return PyUnicode_Tailmatch(code->co_filename, self->own_folder, 0, PY_SSIZE_T_MAX, -1) == 1 &&
           PyUnicode_CompareWithASCIIString(code->co_name, "wrapper") != 0;
}

/* Leave out the frames of the recorder that switches us on, and all that they still do: they are
 * not calls of the program. Returns how many there are. */
static Py_ssize_t mute_own(const sonde_CallTracer *self, PyFrameObject **frames, Py_ssize_t depth)
{
    Py_ssize_t own = 0;
    for (; own < depth; own++) {
        PyCodeObject *code = PyFrame_GetCode(frames[own]);
        if (!is_ours(self, code)) {
            Py_DECREF(code);
            break;
        }
        Py_XSETREF(sonde_calls.muted, (PyObject *)code);
    }
    if (own > 0)
        sonde_call_here = (sonde_call_current){sonde_calls.epoch, NULL};
    return own;
}

/* Enter the current calls of a thread: for us they begin now. */
static void push_frames(const sonde_CallTracer *self, sonde_call_thread *calls,
                        PyFrameObject *innermost)
{
    Py_ssize_t depth;
    PyFrameObject **frames = list_frames(innermost, &depth);
    int is_here = calls->ident == PyThread_get_thread_ident();
    Py_ssize_t own = is_here ? mute_own(self, frames, depth) : 0;
    while (depth-- > 0) {
        PyCodeObject *code = PyFrame_GetCode(frames[depth]);
        sonde_callee callee = {code, (PyObject *)code, NULL};
        sonde_call *call = depth < own ? NULL : sonde_enter(calls, &callee);
        if (call != NULL && call->edge->is_coroutine)
            sonde_await_begin(calls, frames[depth], 0);
        Py_DECREF(code);
        Py_DECREF(frames[depth]);
    }
    free(frames);
}

static void push_threads(const sonde_CallTracer *self, PyObject *frames)
{
    PyObject *ident, *frame;
    Py_ssize_t at = 0;
    while (PyDict_Next(frames, &at, &ident, &frame)) {
        unsigned long number = PyLong_AsUnsignedLong(ident);
        if (!PyFrame_Check(frame) || !sonde_is_hooked(number))
            continue;
        sonde_call_thread *calls = sonde_call_thread_make(number, 0);
        if (calls != NULL)
            push_frames(self, calls, (PyFrameObject *)frame);
    }
    PyErr_Clear();
}

static PyObject *tracer_start(sonde_CallTracer *self, PyObject *Py_UNUSED(none))
{
    if (sonde_call_tracer != NULL)
        return PyErr_Format(PyExc_RuntimeError, "another CallTracer is on");
    if (sonde_calls_watch_threads() < 0)
        return PyErr_Format(PyExc_RuntimeError, "no thread-specific key is left");
    PyObject *list = PySys_GetObject("_current_frames");
    PyObject *frames = list == NULL ? NULL : PyObject_CallNoArgs(list);
    if (frames == NULL)
        return NULL;
    sonde_calls_clear();
    sonde_ticks_init();
    if (sonde_hook(self) < 0) {
        Py_DECREF(frames);
        return NULL;
    }
    sonde_call_tracer = (sonde_CallTracer *)Py_NewRef(self);
    sonde_calls.publish_due = publish_due;
    sonde_calls.begin.ns = sonde_clock_ns();
    sonde_calls.begin.ticks = sonde_ticks();
    self->due_ns = sonde_calls.begin.ns + self->every_ns;
    push_threads(self, frames);
    Py_DECREF(frames);
    set_alarm(self->every_ns);
    Py_RETURN_NONE;
}

static PyObject *tracer_stop(sonde_CallTracer *self, PyObject *Py_UNUSED(none))
{
    if (sonde_call_tracer != self)
        Py_RETURN_NONE;
    int status = sonde_publish(self->rows, self->publications);
    sonde_unhook(self);
    sonde_call_tracer = NULL;
    sonde_calls_clear();
    Py_DECREF(self);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *tracer_publish(sonde_CallTracer *self, PyObject *Py_UNUSED(none))
{
    if (sonde_call_tracer == self && sonde_publish(self->rows, self->publications) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- the type -------------------------------------------------------------------------------- */

static PyObject *tracer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *rows, *publications, *own_folder;
    long long every_ns;
    static char *names[] = {"rows", "publications", "every_ns", "own_folder", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!LU", names, &sonde_WriterType, &rows,
                                     &sonde_WriterType, &publications, &every_ns, &own_folder))
        return NULL;
    if (every_ns <= 0)
        return PyErr_Format(PyExc_ValueError, "every_ns must be positive");
    sonde_CallTracer *self = (sonde_CallTracer *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->rows = Py_NewRef(rows);
    self->publications = Py_NewRef(publications);
    self->own_folder = Py_NewRef(own_folder);
    self->every_ns = every_ns;
    return (PyObject *)self;
}

static void tracer_dealloc(sonde_CallTracer *self)
{
    Py_CLEAR(self->rows);
    Py_CLEAR(self->publications);
    Py_CLEAR(self->own_folder);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *tracer_left_alone(sonde_CallTracer *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(sonde_call_tracer == self ? sonde_count_unhooked() : 0);
}

static PyMethodDef tracer_methods[] = {
    {"start", (PyCFunction)tracer_start, METH_NOARGS,
     "Begin, with the current calls. Raises RuntimeError where that is not possible."},
    {"stop", (PyCFunction)tracer_stop, METH_NOARGS, "Publish what has changed, and forget everything."},
    {"publish", (PyCFunction)tracer_publish, METH_NOARGS, "Write what has changed, now."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tracer_getset[] = {
    {"left_alone", (getter)tracer_left_alone, NULL,
     "The number of threads where the program has set a profile function of its own.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject sonde_CallTracerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.CallTracer",
    .tp_basicsize = sizeof(sonde_CallTracer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "CallTracer(rows, publications, every_ns, own_folder): counts and times every call in all "
              "threads, except code of `own_folder` that switches it on.",
    .tp_new = tracer_new,
    .tp_dealloc = (destructor)tracer_dealloc,
    .tp_methods = tracer_methods,
    .tp_getset = tracer_getset,
};
