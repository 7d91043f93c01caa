/* Python's locks: see lock_object.h. Their structures are in no header, so what is known of them is
 * tried on a lock of our own before any other is read. */
#define _GNU_SOURCE 1
#include "stacks/lock_object.h"
#include "stacks/frame_layout.h"
#include "kernel/read_memory.h"

#include <errno.h>
#include <string.h>

static int ends_with(const char *text, size_t bytes, const char *end)
{
    size_t n = strlen(end);
    return bytes >= n && memcmp(text + bytes - n, end, n) == 0;
}

int sonde_condition_name(const char *name, size_t bytes)
{
    return ends_with(name, bytes, "Condition.wait") || (bytes == 4 && memcmp(name, "wait", 4) == 0);
}

int sonde_condition_file(const char *file, size_t bytes) { return ends_with(file, bytes, "/threading.py"); }

#if SONDE_HAS_LOCKS

/* A lock begins with its word: until 3.13 the address of a semaphore, whose value is 1 while the lock
 * is free; from 3.14 on a byte, whose lowest bit is 1 while it is held. */
typedef struct {
    PyObject head;
    uintptr_t word;
    uintptr_t owner; /* of an RLock */
} lock_layout;

#if PY_VERSION_HEX >= 0x030e0000
#define HAS_SEMAPHORE 0
#else
#define HAS_SEMAPHORE 1
#endif

/* By kind; NULL: not known here. These are references that are never given back. */
static PyTypeObject *types[2];
static PyMethodDescrObject *exits[2]; /* what `with` calls in the end */

static int read_lock(uintptr_t object, enum sonde_lock_kind kind, sonde_lock *lock)
{
    lock_layout copy = {.owner = 0};
    size_t bytes = kind == SONDE_RLOCK ? sizeof copy : offsetof(lock_layout, owner);
    if (sonde_read_memory(&copy, object, bytes) < 0)
        return -1;
    *lock = (sonde_lock){.kind = kind, .object = object, .owner = copy.owner};
#if HAS_SEMAPHORE
    uint32_t value;
    lock->word = copy.word;
    if (sonde_read_memory(&value, copy.word, sizeof value) < 0)
        return -1;
    lock->is_held = value == 0;
    lock->is_wanted = 1;
#else
    lock->word = object + offsetof(lock_layout, word);
    lock->is_held = copy.word & 1;
    lock->is_wanted = (copy.word & 2) != 0;
#endif
    return 0;
}

static int read_any(uintptr_t object, sonde_lock *lock)
{
    PyObject head;
    if (!may_be_frame(object) || sonde_read_memory(&head, object, sizeof head) < 0)
        return -1;
    for (int kind = SONDE_LOCK; kind <= SONDE_RLOCK; kind++)
        if (types[kind] != NULL && head.ob_type == types[kind])
            return read_lock(object, (enum sonde_lock_kind)kind, lock);
    return -1;
}

/* Is this lock as `lock_layout` says? It is taken and given back once. */
static int is_known(PyObject *object, enum sonde_lock_kind kind)
{
    sonde_lock taken, given;
    PyObject *done = PyObject_CallMethod(object, "acquire", NULL);
    Py_XDECREF(done);
    int was_read = done != NULL && read_lock((uintptr_t)object, kind, &taken) == 0;
    done = done == NULL ? NULL : PyObject_CallMethod(object, "release", NULL);
    Py_XDECREF(done);
    was_read = was_read && done != NULL && read_lock((uintptr_t)object, kind, &given) == 0;
    if (!was_read || !taken.is_held || given.is_held)
        return 0;
    return kind == SONDE_LOCK || (taken.owner == PyThread_get_thread_ident() && given.owner == 0);
}

static void find_type(PyObject *module, const char *maker, enum sonde_lock_kind kind)
{
    PyObject *object = types[kind] ? NULL : PyObject_CallMethod(module, maker, NULL);
    PyObject *exit = object == NULL ? NULL : PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__exit__");
    if (exit != NULL && Py_IS_TYPE(exit, &PyMethodDescr_Type) && is_known(object, kind)) {
        types[kind] = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(object));
        exits[kind] = (PyMethodDescrObject *)Py_NewRef(exit);
    }
    Py_XDECREF(exit);
    Py_XDECREF(object);
    PyErr_Clear();
}

int sonde_locks_prepare(void)
{
    PyObject *module = PyImport_ImportModule("_thread");
    if (module == NULL) {
        PyErr_Clear();
        return -ENOSYS;
    }
    find_type(module, "allocate_lock", SONDE_LOCK);
    find_type(module, "RLock", SONDE_RLOCK);
    Py_DECREF(module);
    return types[SONDE_LOCK] == NULL || types[SONDE_RLOCK] == NULL ? -ENOSYS : 0;
}

/* Read a method that is bound to a lock; `*method` becomes what it calls. */
static int read_bound(uintptr_t value, sonde_lock *lock, const PyMethodDef **method)
{
    PyCFunctionObject bound;
    if (sonde_read_memory(&bound, value, sizeof bound) < 0 || !Py_IS_TYPE((PyObject *)&bound, &PyCFunction_Type))
        return -1;
    *method = bound.m_ml;
    return read_any((uintptr_t)bound.m_self, lock);
}

int sonde_lock_read(uintptr_t value, sonde_lock *lock)
{
    const PyMethodDef *method;
    return read_any(value, lock) == 0 ? 0 : read_bound(value, lock, &method);
}

int sonde_lock_is_awaited(const sonde_lock *lock, uintptr_t word)
{
    return lock->is_held && lock->is_wanted && (!HAS_SEMAPHORE || lock->word == word);
}

int sonde_lock_read_with(uintptr_t lower, uintptr_t upper, sonde_lock *lock)
{
#if PY_VERSION_HEX >= 0x030e0000
    return read_any(upper, lock) == 0 && lower == (uintptr_t)exits[lock->kind] ? 0 : -1;
#else
    const PyMethodDef *method;
    (void)lower;
    return read_bound(upper, lock, &method) == 0 && method == exits[lock->kind]->d_method ? 0 : -1;
#endif
}

#endif
