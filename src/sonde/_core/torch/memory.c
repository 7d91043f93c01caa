/* Memory at the end of a step: that of the process is read here, that of devices in Python. */
#include "torch/step_end.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>
#include <sys/stat.h>
#include <unistd.h>

/* The rest is limited, because a reading may have taken long only because we lost the processor. */
#define LONGEST_REST_NS INT64_C(100000000)

typedef struct {
    PyObject_HEAD
    PyObject *emit;
    PyObject *cuda;    /* torch.cuda, or NULL */
    PyObject *devices; /* devices(t_ns, step): writes their rows */
    PyObject *cpu;     /* "cpu" */
    PyObject *path;    /* bytes */
    int fd;
    dev_t dev; /* device and inode of that file: a program that becomes a daemon */
    ino_t ino; /* closes all files, and may have reused the number */
    double page_bytes, most_bytes;
    long long rest; /* a reading is followed by this many times its duration without one */
    int64_t next_ns;
} MemoryObject;

/* ---- /proc/self/statm, kept open: opening it anew takes twenty times as long as reading it ---- */

static int is_ours(const MemoryObject *self)
{
    struct stat about;
    return self->fd >= 0 && fstat(self->fd, &about) == 0 && about.st_dev == self->dev &&
           about.st_ino == self->ino;
}

static void close_file(MemoryObject *self)
{
    if (is_ours(self))
        (void)close(self->fd);
    self->fd = -1;
}

static int open_file(MemoryObject *self)
{
    struct stat about;
    self->fd = open(PyBytes_AS_STRING(self->path), O_RDONLY | O_CLOEXEC);
    if (self->fd < 0 || fstat(self->fd, &about) < 0)
        return -1;
    self->dev = about.st_dev;
    self->ino = about.st_ino;
    return 0;
}

/* Parse seven numbers and nothing else; keep the first two, which are in pages. */
static int parse(const char *text, double pages[2])
{
    for (int field = 0; field < 7; field++) {
        char *end;
        errno = 0;
        unsigned long long value = strtoull(text, &end, 10);
        if (end == text || errno != 0 || strspn(text, " 0123456789\n") < (size_t)(end - text))
            return -1;
        if (field < 2)
            pages[field] = (double)value;
        text = end;
    }
    return text[strspn(text, " \n")] == '\0' ? 0 : -1;
}

/* Read the resident and the total size in bytes. Returns -1 if the kernel does not tell. */
static int read_process(MemoryObject *self, double *resident_bytes, double *size_bytes)
{
    for (int turn = 0; turn < 2; turn++) {
        char text[128];
        double pages[2];
        ssize_t got = self->fd < 0 && open_file(self) < 0 ? -1 : pread(self->fd, text, sizeof text - 1, 0);
        text[got < 0 ? 0 : got] = '\0';
        if (parse(text, pages) == 0) {
            *size_bytes = pages[0] * self->page_bytes;
            *resident_bytes = pages[1] * self->page_bytes;
            if (*resident_bytes > self->most_bytes)
                self->most_bytes = *resident_bytes;
            return 0;
        }
        close_file(self);
    }
    return -1;
}

int sonde_torch_memory_read(PyObject *memory, float values[3])
{
    MemoryObject *self = (MemoryObject *)memory;
    double resident_bytes, size_bytes;
    if (read_process(self, &resident_bytes, &size_bytes) < 0)
        return -1;
    values[0] = (float)(resident_bytes / 1e6);
    values[1] = (float)(self->most_bytes / 1e6);
    values[2] = (float)(size_bytes / 1e6);
    return 0;
}

/* ---- rows --------------------------------------------------------------------------------------- */

static int write_process(MemoryObject *self, int64_t now_ns, long long step)
{
    double resident_bytes, size_bytes;
    if (read_process(self, &resident_bytes, &size_bytes) < 0)
        return 0;
    PyObject *values[] = {
        PyLong_FromLongLong(now_ns), PyLong_FromLongLong(step), Py_NewRef(self->cpu),
        PyLong_FromDouble(resident_bytes), PyLong_FromDouble(self->most_bytes),
        PyLong_FromDouble(size_bytes), Py_NewRef(Py_None), Py_NewRef(Py_None), Py_NewRef(Py_None),
        Py_NewRef(Py_None)};
    enum { COLUMNS = sizeof values / sizeof values[0] };
    int complete = 1;
    for (int i = 0; i < COLUMNS; i++)
        complete &= values[i] != NULL;
    PyObject *result = complete ? PyObject_Vectorcall(self->emit, values, COLUMNS, NULL) : NULL;
    for (int i = 0; i < COLUMNS; i++)
        Py_XDECREF(values[i]);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* May CUDA be in use? Asking torch is Python, and costs more than all the rest, so we do not ask
 * while torch itself says that CUDA is not in use. */
static int may_use_cuda(const MemoryObject *self)
{
    static PyObject *name;
    if (self->cuda == NULL || (name == NULL && (name = PyUnicode_InternFromString("_initialized")) == NULL))
        return 0;
    PyObject *initialized = PyObject_GetAttr(self->cuda, name);
    if (initialized == NULL)
        PyErr_Clear();
    Py_XDECREF(initialized);
    return initialized != Py_False;
}

int64_t sonde_torch_memory_at(PyObject *object, long long step)
{
    MemoryObject *self = (MemoryObject *)object;
    int64_t begin_ns = sonde_clock_ns();
    if (begin_ns < self->next_ns)
        return 0;
    if (write_process(self, begin_ns, step) < 0)
        return -1;
    if (may_use_cuda(self)) {
        PyObject *result = PyObject_CallFunction(self->devices, "LL", (long long)begin_ns, step);
        Py_XDECREF(result);
        if (result == NULL)
            return -1;
    }
    int64_t end_ns = sonde_clock_ns(), took_ns = end_ns - begin_ns;
    self->next_ns = end_ns + LONGEST_REST_NS;
    if (took_ns == 0 || self->rest < LONGEST_REST_NS / took_ns)
        self->next_ns = end_ns + self->rest * took_ns;
    return took_ns;
}

/* ---- the type -------------------------------------------------------------------------------------- */

static PyObject *memory_at_step(PyObject *self, PyObject *number)
{
    long long step = PyLong_AsLongLong(number);
    if (step == -1 && PyErr_Occurred())
        return NULL;
    int64_t took_ns = sonde_torch_memory_at(self, step);
    return took_ns < 0 ? NULL : PyLong_FromLongLong(took_ns);
}

static PyObject *memory_read(MemoryObject *self, PyObject *Py_UNUSED(none))
{
    double resident_bytes, size_bytes;
    if (read_process(self, &resident_bytes, &size_bytes) < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("ddd", resident_bytes / 1e6, self->most_bytes / 1e6, size_bytes / 1e6);
}

static PyObject *memory_close(MemoryObject *self, PyObject *Py_UNUSED(none))
{
    close_file(self);
    Py_RETURN_NONE;
}

static PyObject *memory_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *emit, *cuda, *devices, *path;
    long long rest;
    static char *names[] = {"emit", "cuda", "devices", "path", "rest", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO&L", names, &emit, &cuda, &devices,
                                     PyUnicode_FSConverter, &path, &rest))
        return NULL;
    MemoryObject *self = (MemoryObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        Py_DECREF(path);
        return NULL;
    }
    self->emit = Py_NewRef(emit);
    self->cuda = cuda == Py_None ? NULL : Py_NewRef(cuda);
    self->devices = Py_NewRef(devices);
    self->path = path;
    self->fd = -1;
    self->page_bytes = (double)sysconf(_SC_PAGESIZE);
    self->rest = rest;
    self->cpu = PyUnicode_InternFromString("cpu");
    if (self->cpu == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int memory_traverse(MemoryObject *self, visitproc visit, void *arg)
{
    Py_VISIT(self->emit);
    Py_VISIT(self->cuda);
    Py_VISIT(self->devices);
    return 0;
}

static void memory_dealloc(MemoryObject *self)
{
    PyObject_GC_UnTrack(self);
    close_file(self);
    Py_CLEAR(self->emit);
    Py_CLEAR(self->cuda);
    Py_CLEAR(self->devices);
    Py_CLEAR(self->cpu);
    Py_CLEAR(self->path);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef memory_methods[] = {
    {"at_step", (PyCFunction)memory_at_step, METH_O,
     "at_step(step): write the rows of a step that has just ended, unless the last ones are from a\n"
     "moment ago. Returns the nanoseconds that took."},
    {"read", (PyCFunction)memory_read, METH_NOARGS,
     "Return the resident, the highest resident and the total size of the process in MB; None if the\n"
     "kernel does not tell."},
    {"close", (PyCFunction)memory_close, METH_NOARGS, "Close the file, if it is still ours to close."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef memory_members[] = {
    {"_fd", T_INT, offsetof(MemoryObject, fd), READONLY, "The file descriptor; below 0: it is not open."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject sonde_TorchMemoryType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.TorchMemory",
    .tp_basicsize = sizeof(MemoryObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "TorchMemory(emit, cuda, devices, path, rest): the memory of this process, step by step.",
    .tp_new = memory_new,
    .tp_dealloc = (destructor)memory_dealloc,
    .tp_traverse = (traverseproc)memory_traverse,
    .tp_methods = memory_methods,
    .tp_members = memory_members,
};
