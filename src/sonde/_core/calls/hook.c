/* The two ways in which the interpreter reports calls: sys.monitoring from 3.12
 * on, which covers all threads; before that, a profile function in every thread. */
#include "calls/hook.h"

static const void *key_of_builtin(PyObject *callable)
{
    if (PyCFunction_Check(callable))
        return ((PyCFunctionObject *)callable)->m_ml;
    return NULL;
}

#if PY_VERSION_HEX >= 0x030C0000

/* ---- sys.monitoring --------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
} HookObject;

static PyTypeObject HookType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.CallHook",
    .tp_basicsize = sizeof(HookObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_vectorcall_offset = offsetof(HookObject, call),
    .tp_call = PyVectorcall_Call,
};

static PyObject *missing; /* sys.monitoring.MISSING: called without arguments; borrowed */

static PyObject *on_enter(PyObject *Py_UNUSED(hook), PyObject *const *args, size_t Py_UNUSED(n),
                          PyObject *Py_UNUSED(names))
{
    sonde_call_thread *calls = sonde_call_thread_here();
    if (calls == NULL)
        Py_RETURN_NONE;
    sonde_callee callee = {args[0], args[0], NULL};
    sonde_tick(calls);
    sonde_call *call = sonde_enter(calls, &callee);
    if (call != NULL && call->edge->is_coroutine) {
        PyFrameObject *frame = PyEval_GetFrame();
        if (frame != NULL)
            sonde_await_begin(calls, frame, sonde_is_fresh(frame, args[0]));
    }
    sonde_publish_if_due(calls);
    Py_RETURN_NONE;
}

static inline PyObject *leave(PyObject *code, int ended)
{
    sonde_call_thread *calls = sonde_call_thread_here();
    if (calls == NULL) {
        sonde_unmute(code);
        Py_RETURN_NONE;
    }
    const sonde_edge *edge = calls->top->edge;
    sonde_tick(calls);
    if (edge->key == code && !edge->is_coroutine) {
        sonde_leave(calls);
    } else {
        int is_coroutine = ((PyCodeObject *)code)->co_flags & CO_COROUTINE;
        sonde_leave_other(calls, code, is_coroutine ? PyEval_GetFrame() : NULL, ended);
    }
    sonde_publish_if_due(calls);
    Py_RETURN_NONE;
}

static PyObject *on_leave(PyObject *Py_UNUSED(hook), PyObject *const *args, size_t Py_UNUSED(n),
                          PyObject *Py_UNUSED(names))
{
    return leave(args[0], 1);
}

static PyObject *on_yield(PyObject *Py_UNUSED(hook), PyObject *const *args, size_t Py_UNUSED(n),
                          PyObject *Py_UNUSED(names))
{
    return leave(args[0], 0);
}

/* Return the builtin that is being called, or NULL if it is a Python function, a type or an
 * object. */
static inline const void *find_builtin(PyObject *const *args)
{
    PyObject *callable = args[2];
    if (PyFunction_Check(callable))
        return NULL;
    if (Py_IS_TYPE(callable, &PyMethodDescr_Type))
        return args[3] == missing ? NULL : ((PyMethodDescrObject *)callable)->d_method;
    return key_of_builtin(callable);
}

static PyObject *on_call(PyObject *Py_UNUSED(hook), PyObject *const *args, size_t Py_UNUSED(n),
                         PyObject *Py_UNUSED(names))
{
    const void *key = find_builtin(args);
    sonde_call_thread *calls = key == NULL ? NULL : sonde_call_thread_here();
    if (calls != NULL)
        sonde_enter_builtin(calls, args[2], key);
    Py_RETURN_NONE;
}

static PyObject *on_builtin_end(PyObject *Py_UNUSED(hook), PyObject *const *args,
                                size_t Py_UNUSED(n), PyObject *Py_UNUSED(names))
{
    const void *key = find_builtin(args);
    sonde_call_thread *calls = key == NULL ? NULL : sonde_call_thread_here();
    if (calls != NULL) {
        sonde_leave_builtin(calls, key);
        sonde_publish_if_due(calls);
    }
    Py_RETURN_NONE;
}

static const struct { const char *event; vectorcallfunc call; } handlers[] = {
    {"PY_START", on_enter},  {"PY_RESUME", on_enter},      {"PY_THROW", on_enter},
    {"PY_RETURN", on_leave}, {"PY_UNWIND", on_leave},      {"PY_YIELD", on_yield},
    {"CALL", on_call},       {"C_RETURN", on_builtin_end}, {"C_RAISE", on_builtin_end},
};

static int set_handler(PyObject *monitoring, int tool, int event, vectorcallfunc call)
{
    PyObject *hook = Py_NewRef(Py_None);
    if (call != NULL) {
        HookObject *made = PyObject_New(HookObject, &HookType);
        if (made == NULL)
            return -1;
        made->call = call;
        Py_SETREF(hook, (PyObject *)made);
    }
    PyObject *before = PyObject_CallMethod(monitoring, "register_callback", "iiO", tool, event, hook);
    Py_DECREF(hook);
    Py_XDECREF(before);
    return before == NULL ? -1 : 0;
}

/* Install our handlers, or remove them. */
static int set_handlers(PyObject *monitoring, int tool, int on)
{
    PyObject *events = PyObject_GetAttrString(monitoring, "events");
    int all = 0, status = events == NULL ? -1 : 0;
    for (size_t i = 0; status == 0 && i < sizeof handlers / sizeof *handlers; i++) {
        PyObject *event = PyObject_GetAttrString(events, handlers[i].event);
        int number = event == NULL ? 0 : (int)PyLong_AsLong(event);
        Py_XDECREF(event);
        all |= on ? number : 0;
        status = number <= 0 ? -1
                             : set_handler(monitoring, tool, number, on ? handlers[i].call : NULL);
    }
    Py_XDECREF(events);
    PyObject *done = status < 0 ? NULL
                                : PyObject_CallMethod(monitoring, "set_events", "ii", tool, all);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Take a tool number that nobody uses. Never 2: that is cProfile's, which the program may want. */
static int take_tool(PyObject *monitoring)
{
    static const int wanted[] = {4, 3, 5, 1, 0};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        PyObject *taken = PyObject_CallMethod(monitoring, "use_tool_id", "is", wanted[i], "sonde");
        Py_XDECREF(taken);
        if (taken != NULL)
            return wanted[i];
        if (!PyErr_ExceptionMatches(PyExc_ValueError))
            return -1;
        PyErr_Clear();
    }
    PyErr_SetString(PyExc_RuntimeError, "other tools use all tool ids of sys.monitoring");
    return -1;
}

static void give_back(PyObject *monitoring, int tool)
{
    PyObject *done = PyObject_CallMethod(monitoring, "free_tool_id", "i", tool);
    Py_XDECREF(done);
    PyErr_Clear();
}

int sonde_hook(sonde_CallTracer *self)
{
#ifdef Py_GIL_DISABLED
    PyErr_SetString(PyExc_RuntimeError, "this Python has no GIL, which keeps the numbers sound");
    return -1;
#endif
    PyObject *monitoring = PySys_GetObject("monitoring");
    if (monitoring == NULL || PyType_Ready(&HookType) < 0)
        return -1;
    PyObject *marker = PyObject_GetAttrString(monitoring, "MISSING");
    if (marker == NULL)
        return -1;
    missing = marker;
    Py_DECREF(marker); /* it lives as long as the interpreter */
    self->tool = take_tool(monitoring);
    if (self->tool < 0)
        return -1;
    if (set_handlers(monitoring, self->tool, 1) == 0)
        return 0;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    (void)set_handlers(monitoring, self->tool, 0);
    give_back(monitoring, self->tool);
    PyErr_Restore(type, value, trace);
    return -1;
}

void sonde_unhook(sonde_CallTracer *self)
{
    PyObject *monitoring = PySys_GetObject("monitoring");
    if (monitoring == NULL)
        return;
    (void)set_handlers(monitoring, self->tool, 0);
    PyErr_Clear();
    give_back(monitoring, self->tool);
}

int sonde_is_hooked(unsigned long Py_UNUSED(ident)) { return 1; }

long sonde_count_unhooked(void) { return 0; }

#else

/* ---- a profile function in every thread --------------------------------------------------- */

#include <opcode.h>

static int64_t newest_thread; /* the id of the newest thread state that we have seen */
static void hook_new_threads(sonde_CallTracer *self);

#if PY_VERSION_HEX >= 0x030B0000
#define USE_TRACING 255
#else
#define USE_TRACING 1
#endif

static PyThreadState *first_thread(void)
{
    return PyInterpreterState_ThreadHead(PyInterpreterState_Main());
}

/* Has a coroutine that leaves its frame now ended, so that it will not come back? */
static int has_ended(PyFrameObject *frame, PyCodeObject *code, PyObject *result)
{
    if (result == NULL)
        return 1; /* an exception */
#if PY_VERSION_HEX >= 0x030B0000
    int at = PyFrame_GetLasti(frame) / SONDE_INSTRUCTION_BYTES;
    return at >= 0 && _Py_OPCODE(_PyCode_CODE(code)[at]) == RETURN_VALUE;
#else
    (void)code;
    return frame->f_state != FRAME_SUSPENDED;
#endif
}

static void leave(sonde_call_thread *calls, PyFrameObject *frame, PyCodeObject *code, PyObject *result)
{
    const sonde_edge *edge = calls->top->edge;
    if (edge->key == code && !edge->is_coroutine)
        sonde_leave(calls);
    else if (code->co_flags & CO_COROUTINE)
        sonde_leave_other(calls, code, frame, has_ended(frame, code, result));
    else
        sonde_leave_other(calls, code, NULL, 1);
}

static void on_python(sonde_call_thread *calls, PyFrameObject *frame, int what, PyObject *result)
{
    sonde_tick(calls);
    PyCodeObject *code = PyFrame_GetCode(frame);
    if (what == PyTrace_CALL) {
        sonde_callee callee = {code, (PyObject *)code, NULL};
        sonde_call *call = sonde_enter(calls, &callee);
        if (call != NULL && call->edge->is_coroutine)
            sonde_await_begin(calls, frame, sonde_is_fresh(frame, (PyObject *)code));
    } else {
        leave(calls, frame, code, result);
    }
    Py_DECREF(code); /* the frame holds it, too */
}

static void on_untraced_return(PyFrameObject *frame)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    sonde_unmute(code);
    Py_DECREF(code);
}

static int on_profile(PyObject *Py_UNUSED(self), PyFrameObject *frame, int what, PyObject *arg)
{
    sonde_call_thread *calls = sonde_call_thread_here();
    if (calls == NULL) {
        if (what == PyTrace_RETURN)
            on_untraced_return(frame);
        return 0;
    }
    if (what == PyTrace_CALL || what == PyTrace_RETURN) {
        on_python(calls, frame, what, arg);
    } else if (what == PyTrace_C_CALL || what == PyTrace_C_RETURN || what == PyTrace_C_EXCEPTION) {
        const void *key = key_of_builtin(arg);
        if (key == NULL)
            return 0;
        if (what == PyTrace_C_CALL) {
            sonde_enter_builtin(calls, arg, key);
            return 0;
        }
        sonde_leave_builtin(calls, key);
        /* A thread that has just been started has not run yet: its starter still has the GIL. */
        if ((int64_t)first_thread()->id > newest_thread)
            hook_new_threads(sonde_call_tracer);
    }
    sonde_publish_if_due(calls);
    return 0;
}

/* Do what _PyEval_SetProfile does, without its audit event: a hook of the program that runs there
 * could end threads while we go through them. sonde_hook raises the event once for all threads. */
static void set_profile(PyThreadState *state, PyObject *self)
{
    PyObject *before = state->c_profileobj;
    state->c_profileobj = Py_XNewRef(self);
    state->c_profilefunc = self == NULL ? NULL : on_profile;
    int traced = state->tracing == 0 && (self != NULL || state->c_tracefunc != NULL);
    state->cframe->use_tracing = traced ? USE_TRACING : 0;
    Py_XDECREF(before);
}

/* Is this state complete? A native thread makes its state without the GIL; 3.11 first puts it on
 * the list. */
static int is_made(PyThreadState *state)
{
#if PY_VERSION_HEX >= 0x030B0000
    return sonde_load_acquire(&state->_initialized) && state->cframe != NULL;
#else
    return state->cframe != NULL;
#endif
}

/* Hook the threads that are new. A thread that we have seen before and that has no hook now lost
 * it to the program: we do not know what happened meanwhile, so that thread is left alone. */
static void hook_new_threads(sonde_CallTracer *self)
{
    int64_t newest = newest_thread, unmade = INT64_MAX;
    for (PyThreadState *state = first_thread(); state != NULL; state = PyThreadState_Next(state)) {
        int64_t id = (int64_t)state->id;
        if (id <= newest_thread)
            continue;
        newest = id > newest ? id : newest;
        if (!is_made(state))
            unmade = id < unmade ? id : unmade;
        else if (state->c_profilefunc == NULL)
            set_profile(state, (PyObject *)self);
    }
    newest_thread = newest < unmade ? newest : unmade - 1; /* so that this thread is tried again */
}

int sonde_hook(sonde_CallTracer *self)
{
    if (PySys_Audit("sys.setprofile", NULL) < 0) {
        PyErr_SetString(PyExc_RuntimeError, "an audit hook of the program forbids sys.setprofile");
        return -1;
    }
    newest_thread = -1;
    hook_new_threads(self);
    return 0;
}

void sonde_unhook(sonde_CallTracer *Py_UNUSED(self))
{
    for (PyThreadState *state = first_thread(); state != NULL; state = PyThreadState_Next(state))
        if (state->c_profilefunc == on_profile)
            set_profile(state, NULL);
}

int sonde_is_hooked(unsigned long ident)
{
    for (PyThreadState *state = first_thread(); state != NULL; state = PyThreadState_Next(state))
        if (state->thread_id == ident && state->c_profilefunc == on_profile)
            return 1;
    return 0;
}

long sonde_count_unhooked(void)
{
    long count = 0;
    for (PyThreadState *state = first_thread(); state != NULL; state = PyThreadState_Next(state))
        count += (int64_t)state->id <= newest_thread && is_made(state) &&
                 state->c_profilefunc != on_profile;
    return count;
}

#endif
