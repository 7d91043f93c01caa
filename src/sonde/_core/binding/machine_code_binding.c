/* The file about machine code, for Python. */
#include "binding/binding.h"
#include "format/machine_code.h"

static sonde_machine_table *find_table(PyObject *map)
{
    sonde_machine_table *table = sonde_map_memory(map, 1);
    int status = table == NULL ? 0 : sonde_machine_verify(table, ((MapObject *)map)->bytes);
    if (status < 0) {
        sonde_raise(status, "file about machine code");
        return NULL;
    }
    return table;
}

static PyObject *machine_bytes(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned int entries;
    if (!PyArg_ParseTuple(args, "I", &entries))
        return NULL;
    return PyLong_FromUnsignedLongLong(sonde_machine_bytes(entries));
}

static PyObject *machine_init(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    unsigned int entries;
    if (!PyArg_ParseTuple(args, "O!I", &sonde_MapType, &map, &entries))
        return NULL;
    void *mem = sonde_map_memory(map, 1);
    if (mem == NULL)
        return NULL;
    if (((MapObject *)map)->bytes < sonde_machine_bytes(entries))
        return sonde_raise(-EINVAL, "file about machine code");
    sonde_machine_init(mem, entries);
    Py_RETURN_NONE;
}

static PyObject *machine_take(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    int asker;
    static sonde_stack_bytes copy; /* guarded by the GIL */
    if (!PyArg_ParseTuple(args, "O!i", &sonde_MapType, &map, &asker))
        return NULL;
    sonde_machine_table *table = find_table(map);
    uint64_t unknown;
    if (table == NULL)
        return NULL;
    if (asker < 0 || asker >= SONDE_MACHINE_ASKERS ||
        !sonde_machine_take(table, (enum sonde_machine_asker)asker, &copy, &unknown))
        Py_RETURN_NONE;
    return Py_BuildValue("KKKKKy#", (unsigned long long)unknown, (unsigned long long)copy.pc,
                         (unsigned long long)copy.sp, (unsigned long long)copy.fp, (unsigned long long)copy.link,
                         (const char *)copy.stack, (Py_ssize_t)copy.bytes);
}

static PyObject *machine_add(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map, *text;
    sonde_machine_code code = {0};
    unsigned long long begin, end;
    const char *func, *file;
    Py_ssize_t func_n, file_n;
    if (!PyArg_ParseTuple(args, "O!O!KKHiiiHs#s#", &sonde_MapType, &map, &sonde_TextType, &text, &begin, &end,
                          &code.from, &code.caller, &code.place, &code.frame, &code.kind, &func, &func_n, &file,
                          &file_n))
        return NULL;
    sonde_machine_table *table = find_table(map);
    if (table == NULL)
        return NULL;
    const sonde_intern_handle *texts = sonde_text_table(text);
    code.begin = begin;
    code.end = end;
    code.func = sonde_intern_put(texts, func, (uint32_t)func_n);
    code.file = sonde_intern_put(texts, file, (uint32_t)file_n);
    uint64_t hash = sonde_hash_bytes(SONDE_HASH_SEED, func, (size_t)func_n);
    code.text_hash = sonde_hash_bytes(hash, file, (size_t)file_n);
    return PyBool_FromLong(code.func != 0 && code.file != 0 && sonde_machine_add(table, &code) == 0);
}

PyMethodDef sonde_machine_code_methods[] = {
    {"machine_bytes", machine_bytes, METH_VARARGS, "machine_bytes(entries): the size of a file about machine code."},
    {"machine_init", machine_init, METH_VARARGS, "machine_init(map, entries): write the header of such a file."},
    {"machine_take", machine_take, METH_VARARGS,
     "machine_take(map, asker): (unknown, pc, sp, fp, link, stack) of a stack to be followed, of the sampler (0)\n"
     "or the heap (1); None if there is none."},
    {"machine_add", machine_add, METH_VARARGS,
     "machine_add(map, text, begin, end, from, caller, place, frame, kind, func, file): answer; see\n"
     "machine_code.h. Returns False if there is no room."},
    {NULL, NULL, 0, NULL},
};
