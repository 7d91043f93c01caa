/* The keys of frames that somebody else has read: see frame_key.h. */
#include "stacks/frame_key.h"
#include "stacks/sampler.h"

static uint64_t hash_str(uint64_t h, PyObject *str)
{
    Py_ssize_t bytes_n;
    const char *bytes = PyUnicode_AsUTF8AndSize(str, &bytes_n);
    if (bytes == NULL) {
        PyErr_Clear();
        return h;
    }
    return sonde_hash_bytes(h, bytes, (size_t)bytes_n);
}

/* Make a key of (func, file, line, first line). Returns 0, or -1 with an exception. */
static int make_key(PyObject *text, PyObject *frame, sonde_frame_key *key)
{
    PyObject *func, *file;
    if (!PyArg_ParseTuple(frame, "UUii", &func, &file, &key->line, &key->first_line))
        return -1;
    int64_t func_id = sonde_text_id(text, func), file_id = sonde_text_id(text, file);
    if (func_id < 0 || file_id < 0)
        return -1;
    key->func = (uint32_t)func_id;
    key->file = (uint32_t)file_id;
    key->text_hash = hash_str(hash_str(SONDE_HASH_SEED, func), file);
    return 0;
}

int sonde_frame_keys_make(PyObject *text, PyObject *frames, sonde_frame_key *keys)
{
    Py_ssize_t n = PyList_GET_SIZE(frames);
    if (n > SONDE_MAX_DEPTH)
        n = SONDE_MAX_DEPTH;
    for (Py_ssize_t i = 0; i < n; i++)
        if (make_key(text, PyList_GET_ITEM(frames, i), &keys[i]) < 0)
            return -1;
    return (int)n;
}
