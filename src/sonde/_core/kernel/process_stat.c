/* One look at a process, as /proc has it: two files and a clock in one call.
 *
 * A job may have hundreds of processes, and all are looked at every second; taking
 * the files apart in Python takes five times as long. */
#include "binding/binding.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FIELDS = 22, IO_LINES = 6, STAT_BYTES = 1024, IO_BYTES = 512, TRIES = 3 };
enum { TOGETHER_NS = 50000 };

/* Where `stat` has what after the name; see proc(5), whose count begins at 3 here. */
enum { STATE = 0, PARENT = 1, SMALL_FAULTS = 7, REAPED = 8, FAULTS = 9, USER = 11, SYSTEM = 12,
       THREADS = 17, START = 19, VMS = 20, RSS = 21 };

/* The whole of a small file, as a string: how long, or -errno. */
static ssize_t read_file(int fd, char *to, size_t room)
{
    ssize_t got = pread(fd, to, room - 1, 0);
    if (got < 0)
        return -errno;
    to[got] = '\0';
    return got;
}

/* The next number in a text, or -1 if there is none; `text` moves past it. A minus
 * sign is passed over: what may be negative in `stat` (tty, priority) is not used. */
static long long next_number(const char **text)
{
    const char *at = *text;
    long long number = 0;
    while (*at != '\0' && (*at < '0' || *at > '9'))
        at++;
    if (*at == '\0')
        return -1;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (number > (LLONG_MAX - 9) / 10)
            number = LLONG_MAX / 10 - 1; /* a limit nobody set, such as rsslim */
        number = number * 10 + (*at - '0');
    }
    *text = at;
    return number;
}

/* When, and the CPU time of a process up to then, ended threads included; -1 if the
 * kernel does not say. Whoever is interrupted between two clocks has them disagree. */
static void read_clocks(int pid, long long *now, long long *used)
{
    struct timespec time;
    long long before;
    *now = sonde_clock_ns();
    *used = -1;
    for (int i = 0; i < TRIES; i++) {
        /* As clock_getcpuclockid(3) makes it, which first asks whether there is one. */
        if (clock_gettime((clockid_t)((~(unsigned)pid << 3) | 2), &time) < 0)
            return;
        *used = (long long)time.tv_sec * 1000000000 + time.tv_nsec;
        before = *now;
        *now = sonde_clock_ns();
        if (*now - before < TOGETHER_NS)
            return;
    }
}

/* (read_bytes, write_bytes, rchar, wchar), or None where they may not be read. */
static PyObject *read_io(int fd)
{
    char text[IO_BYTES];
    const char *at = text;
    long long numbers[IO_LINES]; /* as Py_BuildValue wants them */
    if (fd < 0 || read_file(fd, text, sizeof text) <= 0)
        Py_RETURN_NONE;
    for (int i = 0; i < IO_LINES; i++)
        if ((numbers[i] = next_number(&at)) < 0)
            Py_RETURN_NONE;
    return Py_BuildValue("(LLLL)", numbers[4], numbers[5], numbers[0], numbers[1]);
}

/* The fields of `stat` after the name, and the name's ends; 0 or -EINVAL. */
static int parse_stat(const char *text, const char **name, const char **end, long long *fields)
{
    *name = strchr(text, '(');
    *end = strrchr(text, ')'); /* the name may hold brackets, too */
    if (*name == NULL || *end == NULL || *end < *name || (*end)[1] != ' ' || (*end)[2] == '\0')
        return -EINVAL;
    fields[STATE] = (unsigned char)(*end)[2];
    (*name)++;
    const char *at = *end + 3;
    for (int i = STATE + 1; i < FIELDS; i++)
        if ((fields[i] = next_number(&at)) < 0)
            return -EINVAL;
    return 0;
}

/* process_look(pid, stat, io, known): see _core.pyi. The order counts: `stat` last
 * proves that all was of one process; and what it says of ended children is never
 * behind what their I/O is part of. */
PyObject *sonde_process_look(PyObject *Py_UNUSED(module), PyObject *args)
{
    int pid, stat_fd, io_fd;
    char text[STAT_BYTES];
    const char *name, *end;
    long long known, now, used, f[FIELDS];
    if (!PyArg_ParseTuple(args, "iiiL", &pid, &stat_fd, &io_fd, &known))
        return NULL;
    read_clocks(pid, &now, &used);
    if (used >= 0 && used == known)
        return PyLong_FromLongLong(now);
    PyObject *io = read_io(io_fd);
    if (io == NULL)
        return NULL;
    ssize_t got = read_file(stat_fd, text, sizeof text);
    int status = got < 0 ? (int)got : parse_stat(text, &name, &end, f);
    if (status < 0) {
        Py_DECREF(io);
        errno = -status;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    PyObject *shown = PyUnicode_DecodeUTF8(name, end - name, "replace");
    if (shown == NULL) {
        Py_DECREF(io);
        return NULL;
    }
    return Py_BuildValue("(LLNCLLLLLLLLLLN)", now, used, shown, (int)f[STATE], f[PARENT],
                         f[START], f[SMALL_FAULTS], f[REAPED], f[FAULTS], f[USER], f[SYSTEM],
                         f[THREADS], f[VMS], f[RSS], io);
}
