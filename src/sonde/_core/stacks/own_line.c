/* The line of the program that this thread is at, read by the thread itself: see own_line.h. */
#include "stacks/own_line.h"
#include "stacks/frame_layout.h"
#include "stacks/utf8.h"

#include <string.h>

#if SONDE_HAS_FRAMES

enum { MOST_FRAMES = 128, MOST_CHARS = 500 };

static const raw_frame *find_caller(const raw_frame *frame) { return (const raw_frame *)previous_of(frame); }

static PyCodeObject *find_code(const raw_frame *frame)
{
    PyObject *code = is_shim(frame) ? NULL : (PyObject *)code_of(frame);
    return code != NULL && Py_TYPE(code) == &PyCode_Type ? (PyCodeObject *)code : NULL;
}

static int is_in(PyObject *file, const char *folder)
{
    size_t bytes = strlen(folder);
    return PyUnicode_IS_COMPACT_ASCII(file) && (size_t)PyUnicode_GET_LENGTH(file) >= bytes &&
           memcmp(PyUnicode_1BYTE_DATA(file), folder, bytes) == 0;
}

static uint32_t put(PyObject *str, const sonde_intern_handle *text)
{
    char utf8[MOST_CHARS * 4];
    size_t used = 0;
    Py_ssize_t chars = PyUnicode_GET_LENGTH(str);
    for (Py_ssize_t i = 0; i < chars && i < MOST_CHARS; i++)
        used += sonde_put_utf8(utf8 + used, PyUnicode_READ_CHAR(str, i));
    return sonde_intern_put(text, utf8, (uint32_t)used);
}

int sonde_own_line_find(sonde_own_line *found, const char *folder, const sonde_intern_handle *text)
{
    const PyThreadState *state = PyGILState_GetThisThreadState();
    const raw_frame *chosen = NULL, *frame = state == NULL ? NULL : find_innermost(state);
    for (int i = 0; frame != NULL && i < MOST_FRAMES; i++, frame = find_caller(frame)) {
        PyCodeObject *code = find_code(frame);
        if (code == NULL)
            continue;
        int is_outside = !is_in(code->co_filename, folder);
        if (chosen == NULL || is_outside)
            chosen = frame;
        if (is_outside)
            break;
    }
    if (chosen == NULL)
        return -1;
    PyCodeObject *code = find_code(chosen);
#if PY_VERSION_HEX >= 0x030b0000
    found->func = put(code->co_qualname, text);
#else
    found->func = put(code->co_name, text);
#endif
    found->file = put(code->co_filename, text);
    found->line = PyCode_Addr2Line(code, (int)unit_of(chosen) * 2);
    return 0;
}

#else

int sonde_own_line_find(sonde_own_line *found, const char *folder, const sonde_intern_handle *text)
{
    (void)found;
    (void)folder;
    (void)text;
    return -1;
}

#endif
