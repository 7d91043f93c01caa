/* Errors of the core as exceptions. */
#include "binding/binding.h"

#include <errno.h>

PyObject *sonde_Damaged, *sonde_Newer;

PyObject *sonde_raise(int status, const char *what)
{
    if (status == -EBADMSG)
        return PyErr_Format(sonde_Damaged, "%s is cut or damaged", what);
    if (status == -EPROTO)
        return PyErr_Format(sonde_Newer, "%s was written by a newer sonde", what);
    if (status == -EINVAL)
        return PyErr_Format(PyExc_ValueError, "%s: the sizes are impossible", what);
    errno = -status;
    return PyErr_SetFromErrno(PyExc_OSError);
}

int sonde_errors_make(void)
{
    if (sonde_Damaged == NULL)
        sonde_Damaged = PyErr_NewException("sonde._core.Damaged", PyExc_ValueError, NULL);
    if (sonde_Newer == NULL)
        sonde_Newer = PyErr_NewException("sonde._core.Newer", PyExc_ValueError, NULL);
    return sonde_Damaged == NULL || sonde_Newer == NULL ? -1 : 0;
}
