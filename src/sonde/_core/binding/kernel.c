/* What kernel/ does, for Python: the clock, processes, the alive lock and signals. */
#include "binding/binding.h"
#include "kernel/map_guard.h"
#include "kernel/alive_lock.h"
#include "kernel/crash_line.h"
#include "kernel/exit_status.h"
#include "kernel/filter.h"
#include "kernel/keeper.h"
#include "kernel/process_stat.h"
#include "kernel/read_memory.h"
#include "kernel/snapshot_signal.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

/* This is in C because a signal handler may run and raise between any two lines of Python, and
 * the program's signals would then stay blocked for ever. */
static PyObject *undisturbed(PyObject *Py_UNUSED(module), PyObject *call)
{
    sigset_t all, before;
    if (sonde_has_later_filter())
        return PyObject_CallNoArgs(call); /* it may forbid to hold signals back */
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* the guard of mapped files needs it */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    PyObject *result = PyObject_CallNoArgs(call);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}

static PyObject *clock_ns(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromLongLong(sonde_clock_ns());
}

/* ---- processes ------------------------------------------------------------------- */

static PyObject *spawn(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *argv, *envp;
    int line = -1;
    if (!PyArg_ParseTuple(args, "O!O!|i", &PyList_Type, &argv, &PyList_Type, &envp, &line))
        return NULL;
    char **arguments = sonde_strings_copy(argv);
    char **environment = arguments == NULL ? NULL : sonde_strings_copy(envp);
    int status = environment == NULL ? 0 : sonde_keeper_spawn(arguments, environment, line);
    int is_ready = environment != NULL;
    sonde_strings_free(arguments);
    sonde_strings_free(environment);
    if (!is_ready)
        return NULL;
    if (status < 0)
        return sonde_raise(status, "spawn");
    Py_RETURN_NONE;
}

/* Return (read_bytes, write_bytes, rchar, wchar), or None where they may not be read. */
static PyObject *make_io(const sonde_process_stat *stat)
{
    if (!stat->has_io)
        Py_RETURN_NONE;
    return Py_BuildValue("(LLLL)", stat->io[SONDE_IO_READ_BYTES], stat->io[SONDE_IO_WRITE_BYTES],
                         stat->io[SONDE_IO_RCHAR], stat->io[SONDE_IO_WCHAR]);
}

static PyObject *process_read(PyObject *Py_UNUSED(module), PyObject *args)
{
    int pid, stat_fd, io_fd;
    long long known_ns;
    sonde_process_stat stat;
    if (!PyArg_ParseTuple(args, "iiiL", &pid, &stat_fd, &io_fd, &known_ns))
        return NULL;
    int status = sonde_process_read(pid, stat_fd, io_fd, known_ns, &stat);
    if (status > 0)
        return PyLong_FromLongLong(stat.now_ns);
    if (status < 0) {
        errno = -status;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    PyObject *name = PyUnicode_DecodeUTF8(stat.name, (Py_ssize_t)stat.name_bytes, "replace");
    PyObject *io = name == NULL ? NULL : make_io(&stat);
    if (io == NULL) {
        Py_XDECREF(name);
        return NULL;
    }
    const long long *f = stat.field;
    return Py_BuildValue("(LLNCLLLLLLLLLLN)", stat.now_ns, stat.cpu_ns, name, (int)f[SONDE_STAT_STATE],
                         f[SONDE_STAT_PARENT], f[SONDE_STAT_START], f[SONDE_STAT_SMALL_FAULTS],
                         f[SONDE_STAT_REAPED_FAULTS], f[SONDE_STAT_FAULTS], f[SONDE_STAT_USER],
                         f[SONDE_STAT_SYSTEM], f[SONDE_STAT_THREADS], f[SONDE_STAT_VMS],
                         f[SONDE_STAT_RSS], io);
}

static PyObject *write_ready(PyObject *Py_UNUSED(module), PyObject *args)
{
    int fd;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "iy*", &fd, &data))
        return NULL;
    /* Anything but POLLOUT alone is an error, such as a pipe that nobody reads: writing to it sends
     * SIGPIPE, which ends a program that does not ignore it. A writable pipe has room for PIPE_BUF. */
    struct pollfd one = {.fd = fd, .events = POLLOUT};
    ssize_t done = 0;
    if (poll(&one, 1, 0) == 1 && one.revents == POLLOUT)
        done = write(fd, data.buf, data.len < PIPE_BUF ? (size_t)data.len : PIPE_BUF);
    PyBuffer_Release(&data);
    return PyLong_FromSsize_t(done < 0 ? 0 : done);
}

static PyObject *has_filter(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(sonde_has_filter());
}

static PyObject *filter_watch(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(sonde_filter_watch());
}

static PyObject *filter_unwatch(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    sonde_filter_unwatch();
    Py_RETURN_NONE;
}

static PyObject *has_later_filter(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(sonde_has_later_filter());
}

static PyObject *may_read_memory(PyObject *Py_UNUSED(module), PyObject *may_clone)
{
    int has_file = sonde_memory_open(), may_try = PyObject_IsTrue(may_clone) == 1;
    int may_call = !has_file && may_try && sonde_may_call_readv();
    if (may_try)
        sonde_filter_try_files();
    if (!may_call)
        sonde_memory_forbid_call(); /* the program may close the file, and the call was not tried */
    return PyBool_FromLong(has_file || may_call);
}

static PyObject *find_deadly_call(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    const char *name = sonde_find_deadly_call();
    return name == NULL ? Py_NewRef(Py_None) : PyUnicode_FromString(name);
}

/* ---- the alive lock ---------------------------------------------------------------- */

static PyObject *alive_hold(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *path;
    if (!PyArg_ParseTuple(args, "y", &path))
        return NULL;
    int status = sonde_alive_hold(path);
    return status < 0 ? sonde_raise(status, "alive") : PyBool_FromLong(status);
}

static PyObject *alive_release(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(sonde_alive_release());
}

static PyObject *alive_probe(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *path;
    if (!PyArg_ParseTuple(args, "y", &path))
        return NULL;
    int status = sonde_alive_probe(path);
    return status < 0 ? sonde_raise(status, "alive") : PyBool_FromLong(status);
}

/* ---- the exit status --------------------------------------------------------------- */

static PyObject *watched; /* its memory is written to when the process ends, after Python has */

static PyObject *exit_watch(PyObject *Py_UNUSED(module), PyObject *map)
{
    sonde_control *page = NULL;
    if (map != Py_None && (page = sonde_map_memory(map, 1)) == NULL)
        return NULL;
    sonde_exit_watch(page == NULL ? NULL : &page->exit_status);
    Py_XSETREF(watched, Py_NewRef(map));
    Py_RETURN_NONE;
}

static PyObject *exit_tell(PyObject *Py_UNUSED(module), PyObject *status)
{
    int number = (int)PyLong_AsLong(status);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    sonde_exit_tell(number);
    Py_RETURN_NONE;
}

static PyObject *crash_line(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *line;
    Py_ssize_t bytes;
    int exit_code;
    if (!PyArg_ParseTuple(args, "z#i", &line, &bytes, &exit_code))
        return NULL;
    int status = sonde_crash_line_set(line, (size_t)bytes, exit_code);
    if (status < 0)
        return sonde_raise(status, "line");
    Py_RETURN_NONE;
}

/* ---- the signal that asks for a snapshot -------------------------------------------- */

static PyObject *kept; /* still kept after signal_release(): another thread may be in the handler */

static PyObject *signal_catch(PyObject *Py_UNUSED(module), PyObject *args)
{
    int number;
    PyObject *map;
    if (!PyArg_ParseTuple(args, "iO!", &number, &sonde_MapType, &map))
        return NULL;
    sonde_control *page = sonde_map_memory(map, 1);
    if (page == NULL)
        return NULL;
    int status = sonde_signal_catch(number, page, (const void *)PyErr_SetInterrupt);
    if (status < 0) {
        errno = -status;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_XSETREF(kept, Py_NewRef(map));
    Py_RETURN_NONE;
}

static PyObject *signal_release(PyObject *Py_UNUSED(module), PyObject *is_end)
{
    if (is_end == Py_True)
        sonde_signal_rest();
    else
        sonde_signal_release();
    /* What is only kept needs no guard, which would keep SIGBUS. */
    if (kept != NULL)
        sonde_guard_remove(((MapObject *)kept)->mem);
    Py_RETURN_NONE;
}

PyMethodDef sonde_kernel_methods[] = {
    {"clock_ns", clock_ns, METH_NOARGS, "Return CLOCK_MONOTONIC in nanoseconds."},
    {"undisturbed", undisturbed, METH_O,
     "undisturbed(call): call it while signals to this thread are blocked."},
    {"spawn", spawn, METH_VARARGS,
     "spawn(argv, env, line=-1): start a process that is nobody's child; `line` becomes its standard\n"
     "input and output."},
    {"filter_watch", filter_watch, METH_NOARGS,
     "Watch for filters of system calls, and return whether one has come since the first call."},
    {"filter_unwatch", filter_unwatch, METH_NOARGS, "Watch for filters no longer."},
    {"has_later_filter", has_later_filter, METH_NOARGS,
     "Return whether a filter has come while they were watched for."},
    {"write_ready", write_ready, METH_VARARGS,
     "write_ready(fd, data): write as much as takes no waiting; return how many bytes that were."},
    {"has_filter", has_filter, METH_NOARGS, "Return whether system calls of this process are filtered."},
    {"find_deadly_call", find_deadly_call, METH_NOARGS,
     "Return a system call that a recording needs and a filter answers with death; None if there is none."},
    {"may_read_memory", may_read_memory, METH_O,
     "may_read_memory(may_clone): find out whether this process, which has a filter, may read its own memory\n"
     "through the kernel: through a file, or else with a call that is tried in another process. Try as well whether\n"
     "it may ask what kind of file a thread waits for."},
    {"process_read", process_read, METH_VARARGS,
     "process_read(pid, stat, io, known_ns): return what these open files of /proc say about a\n"
     "process, and its CPU time; only the time of reading if the CPU time is still `known_ns`."},
    {"alive_hold", alive_hold, METH_VARARGS,
     "alive_hold(path): lock this process's alive file; False if its file system has no locks."},
    {"alive_release", alive_release, METH_NOARGS, "Let go of the alive file."},
    {"alive_probe", alive_probe, METH_VARARGS, "alive_probe(path): return whether any process holds the lock."},
    {"exit_watch", exit_watch, METH_O,
     "exit_watch(map): have the exit status of this process written to this control page; None: to none."},
    {"exit_tell", exit_tell, METH_O,
     "exit_tell(status): write the status now; the process is about to end at once."},
    {"crash_line", crash_line, METH_VARARGS,
     "crash_line(line, status): a crash from now on writes this line to stderr and ends with this exit\n"
     "status; None: it is a crash again."},
    {"signal_catch", signal_catch, METH_VARARGS,
     "signal_catch(number, map): from now on this signal asks for a snapshot, in addition to what\n"
     "it did before."},
    {"signal_release", signal_release, METH_O,
     "signal_release(is_end): make the signal do again what it did before signal_catch(); at the end\n"
     "of the program, make it do nothing where it would end the program."},
    {NULL, NULL, 0, NULL},
};
