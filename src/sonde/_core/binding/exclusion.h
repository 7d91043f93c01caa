/* What the GIL does for us, where Python has none. Nothing at all elsewhere.
 *
 * Between BEGIN and END no other thread is between them with the same object. Like the GIL, this ends
 * while the thread waits for something of Python's, or Python runs the code of the program: what was
 * read before may have changed afterwards. Never `return` or `goto` out of it. */
#ifndef SONDE_EXCLUSION_H
#define SONDE_EXCLUSION_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Something to exclude each other with that belongs to no object of Python's. */
typedef struct {
    PyObject ob_base;
} sonde_exclusion;

#define SONDE_EXCLUSION {PyObject_HEAD_INIT(NULL)}

/* ThreadSanitizer does not see the locks of a Python that was built without it, so it is told of them. */
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define SONDE_SEE_LOCK(object) void *sonde_locked = (object); __tsan_acquire(sonde_locked);
#define SONDE_SEE_UNLOCK __tsan_release(sonde_locked);
#else
#define SONDE_SEE_LOCK(object)
#define SONDE_SEE_UNLOCK
#endif

#ifdef Py_GIL_DISABLED
#define SONDE_EXCLUDE_BEGIN(object) Py_BEGIN_CRITICAL_SECTION((PyObject *)(object)); SONDE_SEE_LOCK(object)
#define SONDE_EXCLUDE_END SONDE_SEE_UNLOCK Py_END_CRITICAL_SECTION();
#else
#define SONDE_EXCLUDE_BEGIN(object) { (void)(object);
#define SONDE_EXCLUDE_END }
#endif

#endif
