/* Heap: sampled allocations as a Python object. */
#define _GNU_SOURCE 1
#include "heap/heap_binding.h"
#include "heap/allocators.h"
#include "heap/library_slots.h"
#include "heap/native_stack.h"
#include "heap/samples.h"
#include "kernel/filter.h"
#include "kernel/fork.h"
#include "kernel/read_memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    sonde_heap_files files;
    PyObject *maps[4]; /* keep what is written to mapped */
    PyObject *text;
    int is_open;
    uint32_t forks; /* a forked child leaves the files alone */
} HeapObject;

static int open_files(HeapObject *self, PyObject *nodes, PyObject *page)
{
    void *mem = sonde_map_memory(nodes, 1), *control = sonde_map_memory(page, 0);
    if (mem == NULL || control == NULL)
        return -1;
    int status = sonde_nodes_open(&self->files.home.nodes, mem, ((MapObject *)nodes)->bytes);
    if (status == 0)
        status = sonde_control_verify(control, ((MapObject *)page)->bytes);
    if (status < 0) {
        sonde_raise(status, "heap table");
        return -1;
    }
    self->files.page = control;
    self->maps[2] = Py_NewRef(nodes);
    self->maps[3] = Py_NewRef(page);
    return 0;
}

static PyObject *heap_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *rows, *sampling, *text, *nodes, *page;
    int has_types = 1;
    static char *names[] = {"rows", "sampling", "text", "nodes", "page", "types", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O!O!|p", names, &sonde_WriterType, &rows,
                                     &sonde_WriterType, &sampling, &sonde_TextType, &text, &sonde_MapType,
                                     &nodes, &sonde_MapType, &page, &has_types))
        return NULL;
    HeapObject *self = (HeapObject *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->maps[0] = sonde_writer_ring(rows, SONDE_HEAP_KINDS, &self->files.rows);
    if (self->maps[0] != NULL)
        self->maps[1] = sonde_writer_ring(sampling, SONDE_HEAP_SAMPLING_KINDS, &self->files.sampling);
    if (self->maps[1] == NULL || open_files(self, nodes, page) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->files.home.text = sonde_text_table(text);
    self->files.has_types = has_types;
    self->text = Py_NewRef(text);
    self->forks = sonde_forks;
    return (PyObject *)self;
}

static void heap_dealloc(HeapObject *self)
{
    for (int i = 0; i < 4; i++)
        Py_CLEAR(self->maps[i]);
    Py_CLEAR(self->text);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

#if SONDE_HAS_FRAMES && !defined(Py_GIL_DISABLED)

static int is_watching; /* libraries as well; written under the GIL, read by any thread */
static uint32_t watching_forks;
static char watched_file[256]; /* the one library that is watched */
static const char *watched;    /* NULL: all are */

static const HeapObject *native_for; /* for which native functions are seen, */
static uint32_t native_forks;        /* in the process with this number */

static int is_ours(const HeapObject *self) { return self->is_open && self->forks == sonde_forks; }

/* Were libraries loaded whose memory is to be seen, or may native functions be known by now? */
static int wants_look(void)
{
    return sonde_native_stack_is_due() ||
           (sonde_load_relaxed(&is_watching) && sonde_heap_has_drawn() && sonde_libraries_changed());
}

/* A look for libraries opens a file and changes pages: a filter of system calls that has come since may end the program for that. */
static void look_again(void)
{
    sonde_heap_move_late();
    if (is_watching && watching_forks == sonde_forks && sonde_libraries_changed() && !sonde_has_later_filter())
        (void)sonde_libraries_take(watched);
}

static PyObject *heap_start(HeapObject *self, PyObject *args)
{
    long long every;
    if (!PyArg_ParseTuple(args, "L", &every))
        return NULL;
    if (every < 0 || self->is_open) {
        PyErr_SetString(PyExc_ValueError, "start(every): once, with no negative number");
        return NULL;
    }
    const char *mismatch = sonde_layout_mismatch();
    if (mismatch != NULL)
        return PyErr_Format(PyExc_OSError, "this Python differs from the one that sonde was compiled for (%s)",
                            mismatch);
    if (native_for != self || native_forks != sonde_forks)
        sonde_native_stack_close(); /* that of a parent, say, which speaks to the parent's own file */
    int status = sonde_allocators_take();
    if (status == 0)
        status = sonde_heap_begin(&self->files, every);
    if (status < 0) {
        sonde_allocators_give_back();
        sonde_native_stack_close();
        return sonde_raise(status, "allocators");
    }
    self->is_open = 1;
    sonde_native_errand(wants_look, look_again);
    Py_INCREF(self); /* the hooks' reference; stop() gives it back */
    Py_RETURN_NONE;
}

static PyObject *heap_stop(HeapObject *self, PyObject *Py_UNUSED(none))
{
    int was_ours = is_ours(self);
    if (!self->is_open)
        Py_RETURN_NONE;
    self->is_open = 0; /* first: libraries are left without the GIL */
    if (was_ours) {
        sonde_store_relaxed(&is_watching, 0);
        sonde_heap_end();
        sonde_native_stack_close();
        sonde_libraries_give_back();
        sonde_allocators_give_back();
        sonde_memory_close(); /* a sampler of stacks opens it again */
    }
    Py_DECREF(self);
    Py_RETURN_NONE;
}

static PyObject *heap_add_libraries(HeapObject *self, PyObject *args)
{
    const char *only = NULL;
    if (!PyArg_ParseTuple(args, "|z", &only))
        return NULL;
    if (!is_ours(self))
        return PyLong_FromLong(0);
    watched = only == NULL ? NULL : strncpy(watched_file, only, sizeof watched_file - 1);
    int taken = sonde_libraries_take(watched);
    if (taken < 0)
        return sonde_raise(taken, "slots of libraries");
    watching_forks = sonde_forks;
    sonde_store_relaxed(&is_watching, 1);
    return PyLong_FromLong(taken);
}

static PyObject *heap_see_native(HeapObject *self, PyObject *map)
{
    if (!PyObject_TypeCheck(map, &sonde_MapType) || self->is_open) {
        PyErr_SetString(PyExc_ValueError, "see_native(map): before it is started");
        return NULL;
    }
    native_for = self;
    native_forks = sonde_forks;
    int status = sonde_native_stack_open(map);
    return status < 0 ? sonde_raise(status, "native frames") : Py_NewRef(Py_None);
}

static PyObject *heap_add_torch(HeapObject *self, PyObject *args)
{
    const char *path;
    if (!PyArg_ParseTuple(args, "y", &path))
        return NULL;
    int status = is_ours(self) ? sonde_torch_tensors_take(path) : -EBUSY;
    return status < 0 ? sonde_raise(status, "slots of PyTorch") : Py_NewRef(Py_None);
}

static PyObject *heap_set_every(HeapObject *self, PyObject *args)
{
    long long every;
    if (!PyArg_ParseTuple(args, "L", &every))
        return NULL;
    if (is_ours(self) && every >= 0)
        sonde_heap_every(every);
    Py_RETURN_NONE;
}

static PyObject *heap_publish(HeapObject *self, PyObject *Py_UNUSED(none))
{
    if (is_ours(self))
        sonde_heap_publish();
    Py_RETURN_NONE;
}

/* Where the code of a function was loaded; NULL if that is not known. */
static const void *find_home(const void *function)
{
    Dl_info info;
    return dladdr(function, &info) == 0 ? NULL : info.dli_fbase;
}

static PyObject *heap_is_alone(PyObject *Py_UNUSED(type), PyObject *Py_UNUSED(none))
{
    static const PyMemAllocatorDomain domains[] = {PYMEM_DOMAIN_RAW, PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ};
    const void *python = find_home((const void *)PyMem_Malloc);
    for (int i = 0; i < 3; i++) {
        PyMemAllocatorEx now;
        PyMem_GetAllocator(domains[i], &now);
        if (find_home((const void *)now.malloc) != python)
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

static PyObject *heap_is_complete(HeapObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(is_ours(self) && sonde_allocators_taken() && !sonde_libraries_lost());
}

#else

static PyObject *heap_start(HeapObject *Py_UNUSED(self), PyObject *Py_UNUSED(args))
{
    return sonde_raise(-ENOSYS, "allocators of this Python");
}

static PyObject *heap_stop(HeapObject *Py_UNUSED(self), PyObject *Py_UNUSED(none)) { Py_RETURN_NONE; }
static PyObject *heap_add_libraries(HeapObject *Py_UNUSED(self), PyObject *Py_UNUSED(args))
{
    return PyLong_FromLong(0);
}
static PyObject *heap_see_native(HeapObject *Py_UNUSED(self), PyObject *Py_UNUSED(map)) { Py_RETURN_NONE; }
static PyObject *heap_add_torch(HeapObject *Py_UNUSED(self), PyObject *Py_UNUSED(args)) { Py_RETURN_NONE; }
static PyObject *heap_set_every(HeapObject *Py_UNUSED(self), PyObject *Py_UNUSED(args)) { Py_RETURN_NONE; }
static PyObject *heap_publish(HeapObject *Py_UNUSED(self), PyObject *Py_UNUSED(none)) { Py_RETURN_NONE; }
static PyObject *heap_is_alone(PyObject *Py_UNUSED(type), PyObject *Py_UNUSED(none)) { Py_RETURN_FALSE; }
static PyObject *heap_is_complete(HeapObject *Py_UNUSED(self), void *Py_UNUSED(closure)) { Py_RETURN_FALSE; }

#endif

static PyMethodDef heap_methods[] = {
    {"start", (PyCFunction)heap_start, METH_VARARGS,
     "start(every): sample one in so many bytes, on average; 0: as many as are cheap."},
    {"stop", (PyCFunction)heap_stop, METH_NOARGS, "Sample no more, and leave the allocators as they were."},
    {"add_libraries", (PyCFunction)heap_add_libraries, METH_VARARGS,
     "add_libraries(only=None): also sample what libraries ask the C library for, those that are loaded later as well; "
     "or one with this file name. Returns in how many places."},
    {"see_native", (PyCFunction)heap_see_native, METH_O,
     "see_native(map): before start(): also keep the native functions that allocate; see machine_code.h."},
    {"add_torch", (PyCFunction)heap_add_torch, METH_VARARGS,
     "add_torch(path of libc10): also sample the memory of PyTorch's tensors on the CPU."},
    {"set_every", (PyCFunction)heap_set_every, METH_VARARGS, "set_every(every): change that number."},
    {"is_alone", heap_is_alone, METH_NOARGS | METH_STATIC,
     "is_alone(): do all allocators of this Python belong to it, and not to a tool?"},
    {"publish", (PyCFunction)heap_publish, METH_NOARGS, "Write rows of all that has changed."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef heap_getset[] = {
    {"is_complete", (getter)heap_is_complete, NULL, "Do all allocations still come to us?", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject sonde_HeapType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Heap",
    .tp_basicsize = sizeof(HeapObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Heap(rows, sampling, text, nodes, page, types=True): samples what Python allocates.",
    .tp_new = heap_new,
    .tp_dealloc = (destructor)heap_dealloc,
    .tp_methods = heap_methods,
    .tp_getset = heap_getset,
};
