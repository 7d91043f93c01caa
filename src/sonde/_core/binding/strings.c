/* Lists of bytes objects as arrays of C strings. */
#include "binding/binding.h"

#include <stdlib.h>
#include <string.h>

char **sonde_strings_copy(PyObject *list)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    char **copies = calloc((size_t)count + 1, sizeof *copies);
    for (Py_ssize_t i = 0; copies != NULL && i < count; i++) {
        const char *bytes = PyBytes_AsString(PyList_GET_ITEM(list, i));
        copies[i] = bytes == NULL ? NULL : strdup(bytes);
        if (copies[i] == NULL) {
            for (Py_ssize_t j = 0; j < i; j++)
                free(copies[j]);
            free(copies);
            copies = NULL;
        }
    }
    if (copies == NULL && !PyErr_Occurred())
        PyErr_NoMemory();
    return copies;
}

void sonde_strings_free(char **strings)
{
    for (char **at = strings; at != NULL && *at != NULL; at++)
        free(*at);
    free(strings);
}
