/* sonde._core: the Python face of the core. */
#include "binding/binding.h"
#include "collectives/collectives.h"
#include "events/events.h"
#include "torch/step_end.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "sonde writes little-endian files and supports x86_64 and aarch64"
#endif

PyObject *sonde_Damaged, *sonde_Newer;

PyObject *sonde_raise(int status, const char *what)
{
    if (status == -EBADMSG)
        return PyErr_Format(sonde_Damaged, "%s is cut or damaged", what);
    if (status == -EPROTO)
        return PyErr_Format(sonde_Newer, "%s was written by a newer sonde", what);
    if (status == -EINVAL)
        return PyErr_Format(PyExc_ValueError, "%s: sizes that cannot be", what);
    errno = -status;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* ---- Map ---------------------------------------------------------------------- */

void *sonde_map_memory(PyObject *object, int writable)
{
    if (!PyObject_TypeCheck(object, &sonde_MapType)) {
        PyErr_SetString(PyExc_TypeError, "a Map expected");
        return NULL;
    }
    MapObject *map = (MapObject *)object;
    if (map->mem == NULL || (writable && !map->writable)) {
        PyErr_SetString(PyExc_ValueError, map->mem ? "the map is read-only" : "the map is closed");
        return NULL;
    }
    return map->mem;
}

static PyObject *map_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int fd, writable = 0;
    static char *names[] = {"fd", "writable", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|p", names, &fd, &writable))
        return NULL;
    struct stat status;
    if (fstat(fd, &status) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    if (!S_ISREG(status.st_mode) || status.st_size < 64)
        return sonde_raise(-EBADMSG, "the file");
    MapObject *self = (MapObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->bytes = (size_t)status.st_size;
    self->writable = writable;
    void *mem = mmap(NULL, self->bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                     fd, 0);
    if (mem == MAP_FAILED) {
        Py_DECREF(self);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    self->mem = mem;
    return (PyObject *)self;
}

static void map_dealloc(MapObject *self)
{
    if (self->mem != NULL)
        munmap(self->mem, self->bytes);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static Py_ssize_t map_length(PyObject *self) { return (Py_ssize_t)((MapObject *)self)->bytes; }

static PySequenceMethods map_sequence = {.sq_length = map_length};

PyTypeObject sonde_MapType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Map",
    .tp_basicsize = sizeof(MapObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Map(fd, writable=False): a file mapped whole, for as long as this object lives.",
    .tp_new = map_new,
    .tp_dealloc = (destructor)map_dealloc,
    .tp_as_sequence = &map_sequence,
};

/* ---- the rest ----------------------------------------------------------------------- */

static PyObject *check_bytes(PyObject *Py_UNUSED(module), PyObject *object)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t check;
    Py_BEGIN_ALLOW_THREADS
    check = sonde_check_bytes(buffer.buf, (size_t)buffer.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&buffer);
    return PyLong_FromUnsignedLong(check);
}

/* In C, because between any two lines of Python a handler may run and raise,
 * and then the signals of the program would stay held back for ever. */
static PyObject *undisturbed(PyObject *Py_UNUSED(module), PyObject *call)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    PyObject *result = PyObject_CallNoArgs(call);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}

static PyObject *clock_ns(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromLongLong(sonde_clock_ns());
}

/* A NULL-terminated array of the bytes objects in a list; they keep the memory. */
static char **strings_of(PyObject *list)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    char **strings = PyMem_Calloc((size_t)count + 1, sizeof *strings);
    if (strings == NULL)
        return (char **)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        strings[i] = PyBytes_AsString(PyList_GET_ITEM(list, i));
        if (strings[i] == NULL) {
            PyMem_Free(strings);
            return NULL;
        }
    }
    return strings;
}

static PyObject *spawn(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *argv, *envp;
    int line = -1;
    if (!PyArg_ParseTuple(args, "O!O!|i", &PyList_Type, &argv, &PyList_Type, &envp, &line))
        return NULL;
    char **arguments = strings_of(argv);
    char **environment = arguments == NULL ? NULL : strings_of(envp);
    if (environment == NULL) {
        PyMem_Free(arguments);
        return NULL;
    }
    int status = sonde_spawn(arguments, environment, line);
    PyMem_Free(arguments);
    PyMem_Free(environment);
    if (status < 0)
        return sonde_raise(status, "spawn");
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"clock_ns", clock_ns, METH_NOARGS, "CLOCK_MONOTONIC in nanoseconds."},
    {"check_bytes", check_bytes, METH_O, "The 32-bit check of bytes."},
    {"undisturbed", undisturbed, METH_O,
     "undisturbed(call): call it while signals to this thread wait."},
    {"later", sonde_later, METH_VARARGS,
     "later(call, delay_ns): call it in the main thread after a while."},
    {"later_cancel", sonde_later_cancel, METH_NOARGS, "Give that call up."},
    {"alive_hold", sonde_alive_hold, METH_VARARGS,
     "alive_hold(path): lock this process's alive file; False if there are no locks here."},
    {"alive_release", sonde_alive_release, METH_NOARGS, "Let the alive file go."},
    {"alive_probe", sonde_alive_probe, METH_VARARGS, "alive_probe(path): does anyone hold it?"},
    {"frame_locals", sonde_frame_locals, METH_O, "frame_locals(frame): [(name, value), …] now."},
    {"summarize", sonde_summarize, METH_VARARGS,
     "summarize(address, kind, shape, strides, most): (seen, nans, least, largest, mean) of at most\n"
     "so many numbers, evenly spread, in memory that must be the caller's; strides in bytes."},
    {"soon", sonde_soon, METH_O, "soon(call): call it in the main thread, at its next safe point."},
    {"signal_catch", sonde_signal_catch, METH_VARARGS,
     "signal_catch(number, map): this signal asks for a snapshot; what it did before, it still does."},
    {"signal_release", sonde_signal_release, METH_NOARGS, "Let the signal be what it was."},
    {"visit", sonde_visit, METH_VARARGS,
     "visit(pid, tid, ranges, caught, restorer, calls, source, deadline_ns): have a thread of another\n"
     "process make one that runs this Python text; which, or 0 if it is at no safe place now."},
    {"hold", sonde_hold, METH_VARARGS,
     "hold(pid, visitor, until_ns): have the busy threads of a process wait at their system calls, a\n"
     "moment each, until the visitor is done."},
    {"torch_observe", sonde_torch_observe, METH_VARARGS,
     "torch_observe(library, current_node, engine): have autograd's nodes seen; None: only find functions."},
    {"torch_ignore", sonde_torch_ignore, METH_NOARGS, "Have autograd's nodes seen no more."},
    {"torch_plan", sonde_torch_plan, METH_VARARGS,
     "torch_plan(step, shadow, every, steps, detail): which of ladder.py's plans a step has."},
    {"torch_observed", sonde_torch_observed, METH_NOARGS, "How autograd's nodes are seen: looking, engine, observer or failed."},
    {"torch_device", sonde_torch_device, METH_VARARGS,
     "torch_device(cudart, c10_cuda, device, stream): find what records events of CUDA."},
    {"process_look", sonde_process_look, METH_VARARGS,
     "process_look(pid, stat, io, known): what these open files of /proc say of a process, and its\n"
     "CPU clock; only the time if that is still what is known."},
    {"spawn", spawn, METH_VARARGS,
     "spawn(argv, env, line=-1): start a process that is nobody's child; `line` is its 0 and 1."},
    {NULL, NULL, 0, NULL},
};

static void in_child(void)
{
    /* Before any code of the child runs: the mapped files belong to the parent. */
    sonde_writers_off();
    sonde_events_off();
    sonde_watchers_off();
    sonde_later_off();
    sonde_alive_off();
    sonde_sampling_off();
    sonde_signal_off();
    sonde_peek_off();
    sonde_torch_off();
    sonde_collective_off();
}

static int add_types(PyObject *core)
{
    return PyModule_AddType(core, &sonde_MapType) < 0 || PyModule_AddType(core, &sonde_TextType) < 0 ||
           PyModule_AddType(core, &sonde_WriterType) < 0 ||
           PyModule_AddType(core, &sonde_WatcherType) < 0 ||
           PyModule_AddType(core, &sonde_GcType) < 0 ||
           PyModule_AddType(core, &sonde_NestType) < 0 ||
           PyModule_AddType(core, &sonde_SamplerType) < 0 ||
           PyModule_AddType(core, &sonde_CallType) < 0 ||
           PyModule_AddType(core, &sonde_TorchTracerType) < 0 ||
           PyModule_AddType(core, &sonde_TorchCallType) < 0 ||
           PyModule_AddType(core, &sonde_TorchEngineType) < 0 ||
           PyModule_AddType(core, &sonde_TorchMarksType) < 0 ||
           PyModule_AddType(core, &sonde_StepType) < 0 ||
           PyModule_AddType(core, &sonde_StepsType) < 0 ||
           PyModule_AddType(core, &sonde_TorchOptimizersType) < 0 ||
           PyModule_AddType(core, &sonde_TorchNextType) < 0 ||
           PyModule_AddType(core, &sonde_TorchMemoryType) < 0 ||
           PyModule_AddType(core, &sonde_TorchTurnType) < 0 ||
           sonde_region_ready(core) < 0 ||
           PyModule_AddType(core, &sonde_CountType) < 0 ||
           PyModule_AddType(core, &sonde_MarkType) < 0 ||
           PyType_Ready(&sonde_TorchMarkType) < 0;
}

static int add_errors(PyObject *core)
{
    if (sonde_Damaged == NULL)
        sonde_Damaged = PyErr_NewException("sonde._core.Damaged", PyExc_ValueError, NULL);
    if (sonde_Newer == NULL)
        sonde_Newer = PyErr_NewException("sonde._core.Newer", PyExc_ValueError, NULL);
    return sonde_Damaged == NULL || sonde_Newer == NULL ||
           PyModule_AddObjectRef(core, "Damaged", sonde_Damaged) < 0 ||
           PyModule_AddObjectRef(core, "Newer", sonde_Newer) < 0;
}

static int add_constants(PyObject *core)
{
    return PyModule_AddIntConstant(core, "STARTING", SONDE_STARTING) < 0 ||
           PyModule_AddIntConstant(core, "RUNNING", SONDE_RUNNING) < 0 ||
           PyModule_AddIntConstant(core, "STOPPED", SONDE_STOPPED) < 0 ||
           PyModule_AddIntConstant(core, "EXITED", SONDE_EXITED) < 0 ||
           PyModule_AddIntConstant(core, "FORMAT_VERSION", SONDE_FORMAT_VERSION) < 0 ||
           PyModule_AddIntConstant(core, "CONTROL_BYTES", sizeof(sonde_control)) < 0 ||
           PyModule_AddIntConstant(core, "LIVE_BYTES", (long)sonde_live_bytes()) < 0;
}

static int add_visit_calls(PyObject *core)
{
    PyObject *names = sonde_visit_calls();
    int status = names == NULL ? -1 : PyModule_AddObjectRef(core, "VISIT_CALLS", names);
    Py_XDECREF(names);
    return status;
}

static int fill_module(PyObject *core)
{
    static int hooked;
    /* One recording per process: its state is the process's, not an interpreter's. */
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "sonde records the main interpreter only");
        return -1;
    }
    if (add_types(core) || add_errors(core) || add_constants(core) ||
        add_visit_calls(core) < 0 ||
        PyModule_AddFunctions(core, sonde_read_methods) < 0 ||
        PyModule_AddFunctions(core, sonde_steer_methods) < 0 ||
        PyModule_AddFunctions(core, sonde_collective_methods) < 0 ||
        PyModule_AddFunctions(core, sonde_event_methods) < 0)
        return -1;
    if (!hooked)
        hooked = pthread_atfork(NULL, NULL, in_child) == 0;
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill_module},
#ifdef Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "sonde._core",
    .m_doc = "Rings, intern tables, the control page and the clock, in C.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&module); }
