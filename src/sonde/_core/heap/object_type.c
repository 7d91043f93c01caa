/* The type of the object in a block: guessed from its words, and believed if they lead to a type. */
#include "heap/object_type.h"
#include "kernel/read_memory.h"

#include <string.h>

/* In front of an object may be the words of the garbage collector, and in front of these those for
 * its dict and its weak references. */
static const size_t offsets[] = {0, 16, 32};

static int is_count(Py_ssize_t references)
{
    return references > 0 && (uint64_t)references < (uint64_t)1 << 32;
}

static int is_type(const PyTypeObject *type)
{
    PyTypeObject above; /* its own type: `type`, or a class that inherits from it */
    const PyTypeObject *meta = ((const PyObject *)type)->ob_type;
    if (meta == &PyType_Type)
        return 1;
    return sonde_read_memory(&above, (uintptr_t)meta, offsetof(PyTypeObject, tp_doc)) == 0 &&
           ((PyObject *)&above)->ob_type == &PyType_Type && (above.tp_flags & Py_TPFLAGS_TYPE_SUBCLASS);
}

static size_t copy_name(uintptr_t from, char name[SONDE_TYPE_BYTES])
{
    /* A name may end right before memory that is not there. */
    size_t room = SONDE_PAGE - from % SONDE_PAGE;
    size_t bytes = room < SONDE_TYPE_BYTES ? room : SONDE_TYPE_BYTES;
    if (sonde_read_memory(name, from, bytes) < 0)
        return 0;
    size_t used = strnlen(name, bytes);
    for (size_t i = 0; i < used; i++)
        if ((unsigned char)name[i] < ' ')
            return 0;
    return used;
}

size_t sonde_object_type(uintptr_t block, size_t size, char name[SONDE_TYPE_BYTES])
{
    char head_bytes[48];
    if (size > sizeof head_bytes)
        size = sizeof head_bytes;
    if (sonde_read_memory(head_bytes, block, size) < 0)
        return 0;
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        PyObject head;
        PyTypeObject type;
        if (size < offsets[i] + sizeof head)
            break;
        memcpy(&head, head_bytes + offsets[i], sizeof head);
        uintptr_t at = (uintptr_t)head.ob_type;
        if (!is_count(Py_REFCNT(&head)) || at % sizeof(void *) != 0 ||
            sonde_read_memory(&type, at, offsetof(PyTypeObject, tp_doc)) < 0 || !is_type(&type))
            continue;
        size_t bytes = copy_name((uintptr_t)type.tp_name, name);
        if (bytes)
            return bytes;
    }
    return 0;
}
