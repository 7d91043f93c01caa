/* Text tables and stack tables for Python, and the checksum of bytes. */
#include "binding/binding.h"

#include <string.h>

char *sonde_append_buffer(PyObject *list, uint64_t bytes, int zeroed)
{
    PyObject *buffer = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    if (buffer == NULL)
        return NULL;
    char *data = PyByteArray_AS_STRING(buffer);
    if (zeroed)
        memset(data, 0, bytes);
    int status = PyList_Append(list, buffer);
    Py_DECREF(buffer);
    return status < 0 ? NULL : data;
}

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

static PyObject *intern_bytes(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned int entries;
    unsigned long long data_bytes;
    if (!PyArg_ParseTuple(args, "IK", &entries, &data_bytes))
        return NULL;
    return PyLong_FromUnsignedLongLong(sonde_intern_bytes(entries, data_bytes));
}

static PyObject *intern_init(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    unsigned int entries;
    unsigned long long data_bytes;
    if (!PyArg_ParseTuple(args, "O!IK", &sonde_MapType, &map, &entries, &data_bytes))
        return NULL;
    void *mem = sonde_map_memory(map, 1);
    if (mem == NULL)
        return NULL;
    int status = sonde_intern_init(mem, ((MapObject *)map)->bytes, entries, data_bytes);
    if (status < 0)
        return sonde_raise(status, "intern table");
    Py_RETURN_NONE;
}

static PyObject *intern_read(PyObject *Py_UNUSED(module), PyObject *map)
{
    const void *mem = sonde_map_memory(map, 0);
    if (mem == NULL)
        return NULL;
    sonde_intern_handle table;
    int status = sonde_intern_open(&table, mem, ((MapObject *)map)->bytes);
    if (status < 0)
        return sonde_raise(status, "intern table");
    uint32_t count = sonde_load_acquire(&table.shared->count);
    if (count > table.entries)
        count = table.entries;
    PyObject *texts = PyList_New(count);
    if (texts == NULL)
        return NULL;
    for (uint32_t id = 1; id <= count; id++) {
        uint32_t bytes_n = 0;
        const void *bytes = sonde_intern_get(&table, id, &bytes_n);
        PyObject *text = bytes == NULL ? Py_NewRef(Py_None)
                                       : PyBytes_FromStringAndSize(bytes, (Py_ssize_t)bytes_n);
        if (text == NULL) {
            Py_DECREF(texts);
            return NULL;
        }
        PyList_SET_ITEM(texts, id - 1, text);
    }
    return Py_BuildValue("NK", texts, (unsigned long long)sonde_load_relaxed(&table.shared->lost));
}

static PyObject *intern_lost(PyObject *Py_UNUSED(module), PyObject *map)
{
    const void *mem = sonde_map_memory(map, 0);
    if (mem == NULL)
        return NULL;
    sonde_intern_handle table;
    int status = sonde_intern_open(&table, mem, ((MapObject *)map)->bytes);
    if (status < 0)
        return sonde_raise(status, "intern table");
    return PyLong_FromUnsignedLongLong(sonde_load_relaxed(&table.shared->lost));
}

static PyObject *nodes_bytes(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned int entries;
    if (!PyArg_ParseTuple(args, "I", &entries))
        return NULL;
    return PyLong_FromUnsignedLongLong(sonde_nodes_bytes(entries));
}

static PyObject *nodes_init(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    unsigned int entries;
    if (!PyArg_ParseTuple(args, "O!I", &sonde_MapType, &map, &entries))
        return NULL;
    void *mem = sonde_map_memory(map, 1);
    if (mem == NULL)
        return NULL;
    int status = sonde_nodes_init(mem, ((MapObject *)map)->bytes, entries);
    if (status < 0)
        return sonde_raise(status, "stack table");
    Py_RETURN_NONE;
}

/* Columns of the nodes: u32 id, parent, func, file; i32 line, first line; u64 hash,
 * samples; i64 wall, cpu, gil. */
enum { NODE_COLUMNS = 11 };
static const uint8_t node_bytes[NODE_COLUMNS] = {4, 4, 4, 4, 4, 4, 8, 8, 8, 8, 8};

static void take_node(char *const *columns, uint32_t at, uint32_t id, const sonde_node *node)
{
    const uint32_t small[6] = {id, node->parent, node->func, node->file, (uint32_t)node->line,
                               (uint32_t)node->first_line};
    const uint64_t large[5] = {node->hash, node->samples, (uint64_t)node->wall_ns,
                               (uint64_t)node->cpu_ns, (uint64_t)node->gil_ns};
    for (int i = 0; i < 6; i++)
        memcpy(columns[i] + (size_t)at * 4, &small[i], 4);
    for (int i = 0; i < 5; i++)
        memcpy(columns[6 + i] + (size_t)at * 8, &large[i], 8);
}

static PyObject *nodes_read(PyObject *Py_UNUSED(module), PyObject *map)
{
    const void *mem = sonde_map_memory(map, 0);
    if (mem == NULL)
        return NULL;
    sonde_nodes_handle table;
    int status = sonde_nodes_open(&table, mem, ((MapObject *)map)->bytes);
    if (status < 0)
        return sonde_raise(status, "stack table");
    uint32_t count = sonde_load_acquire(&table.shared->count), sound = 0;
    if (count > table.entries)
        count = table.entries;
    PyObject *list = PyList_New(0);
    char *columns[NODE_COLUMNS];
    for (int i = 0; list != NULL && i < NODE_COLUMNS; i++)
        if ((columns[i] = sonde_append_buffer(list, (uint64_t)count * node_bytes[i], 0)) == NULL)
            Py_CLEAR(list);
    if (list == NULL)
        return NULL;
    for (uint32_t id = 1; id <= count; id++) {
        sonde_node node;
        if (sonde_nodes_get(&table, id, &node) == 0)
            take_node(columns, sound++, id, &node);
    }
    return Py_BuildValue("INIKL", sound, list, count - sound,
                         (unsigned long long)sonde_load_relaxed(&table.shared->lost),
                         (long long)sonde_load_relaxed(&table.shared->t_ns));
}

static PyObject *nodes_lost(PyObject *Py_UNUSED(module), PyObject *map)
{
    const void *mem = sonde_map_memory(map, 0);
    if (mem == NULL)
        return NULL;
    sonde_nodes_handle table;
    int status = sonde_nodes_open(&table, mem, ((MapObject *)map)->bytes);
    if (status < 0)
        return sonde_raise(status, "stack table");
    return PyLong_FromUnsignedLongLong(sonde_load_relaxed(&table.shared->lost));
}

PyMethodDef sonde_tables_methods[] = {
    {"check_bytes", check_bytes, METH_O, "Return the 32-bit checksum of bytes."},
    {"intern_bytes", intern_bytes, METH_VARARGS, "intern_bytes(entries, data_bytes): return the size of the file."},
    {"intern_init", intern_init, METH_VARARGS, "intern_init(map, entries, data_bytes): make an empty text table."},
    {"intern_read", intern_read, METH_O,
     "intern_read(map): return ([bytes or None of id 1, 2, …], lost)."},
    {"intern_lost", intern_lost, METH_O, "intern_lost(map): return how many texts found no room."},
    {"nodes_bytes", nodes_bytes, METH_VARARGS, "nodes_bytes(entries): return the size of the file."},
    {"nodes_init", nodes_init, METH_VARARGS, "nodes_init(map, entries): make an empty stack table."},
    {"nodes_lost", nodes_lost, METH_O, "nodes_lost(map): return how many samples found no room for their stack."},
    {"nodes_read", nodes_read, METH_O,
     "nodes_read(map): return (sound nodes, [id, parent, func, file, line, first line, hash, samples,\n"
     "wall, cpu, gil] as buffers, damaged, lost, when the sums were copied; 0: this is the table)."},
    {NULL, NULL, 0, NULL},
};
