/* Map: a file mapped into this process. */
#include "binding/binding.h"
#include "kernel/filter.h"
#include "kernel/map_guard.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

void *sonde_map_memory(PyObject *object, int writable)
{
    if (!PyObject_TypeCheck(object, &sonde_MapType)) {
        PyErr_SetString(PyExc_TypeError, "expected a Map");
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
    sonde_guard_add(mem, self->bytes, writable);
    self->mem = mem;
    return (PyObject *)self;
}

static void map_dealloc(MapObject *self)
{
    if (self->mem != NULL && !sonde_had_later_filter()) { /* it may forbid to give memory back */
        sonde_guard_remove(self->mem);
        munmap(self->mem, self->bytes);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static Py_ssize_t map_length(PyObject *self) { return (Py_ssize_t)((MapObject *)self)->bytes; }

static PySequenceMethods map_sequence = {.sq_length = map_length};

PyTypeObject sonde_MapType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.Map",
    .tp_basicsize = sizeof(MapObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Map(fd, writable=False): a whole file, mapped for as long as this object lives.",
    .tp_new = map_new,
    .tp_dealloc = (destructor)map_dealloc,
    .tp_as_sequence = &map_sequence,
};
