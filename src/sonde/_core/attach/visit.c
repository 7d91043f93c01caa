/* visit(): run Python source in another process, through one of its threads.
 *
 * The thread must be at a safe place: one where it holds no lock of the C library (malloc, thread
 * stacks, the loader), since it is about to start a thread. That is so while it waits in a system
 * call that none of these makes with a lock held, and while it runs the code of any other
 * library.
 */
#define _GNU_SOURCE 1
#include "attach/attach.h"
#include "attach/ptrace.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STACK_BYTES = 4 << 20, PROOF_BYTES = 16, MAX_RANGES = 1024 };

/* The names of sonde_errand.calls; some may be missing in a C library. */
static const char *const names[SONDE_CALLS] = {
    [SONDE_CALL_ERRNO] = "__errno_location",
    [SONDE_CALL_SIGMASK] = "pthread_sigmask",
    [SONDE_CALL_ATTR_INIT] = "pthread_attr_init",
    [SONDE_CALL_ATTR_DETACHED] = "pthread_attr_setdetachstate",
    [SONDE_CALL_ATTR_STACK] = "pthread_attr_setstacksize",
    [SONDE_CALL_CREATE] = "pthread_create",
    [SONDE_CALL_CLOCK] = "clock_gettime",
    [SONDE_CALL_MMAP] = "mmap",
    [SONDE_CALL_MUNMAP] = "munmap",
    [SONDE_CALL_IS_READY] = "Py_IsInitialized",
    [SONDE_CALL_ENSURE] = "PyGILState_Ensure",
    [SONDE_CALL_RELEASE] = "PyGILState_Release",
    [SONDE_CALL_DICT] = "PyDict_New",
    [SONDE_CALL_RUN] = "PyRun_StringFlags",
    [SONDE_CALL_CLEAR] = "PyErr_Clear",
    [SONDE_CALL_DECREF] = "Py_DecRef",
};

typedef struct {
    uint64_t start, end;
} range;

/* One visit: what the tool found out before touching anything. */
typedef struct {
    sonde_ptraced traced;
    range ranges[MAX_RANGES]; /* machine code in which a running thread may be stopped */
    int ranges_n;
    uint64_t caught; /* signals that the program handles */
    uint64_t calls[SONDE_CALLS];
    uint8_t proofs[SONDE_CALLS][PROOF_BYTES]; /* how these functions begin */
    const char *source;
    size_t source_bytes; /* including the 0 at its end */
} visit;

/* ---- safe places ------------------------------------------------------------- */

/* System calls that malloc, the loader and the thread library never make with a
 * lock held. Their locks wait with FUTEX_WAIT; condition variables, semaphores
 * and joins, which hold none, with FUTEX_WAIT_BITSET. */
static int is_patient(const sonde_waiting_place *place)
{
    switch (place->number) {
    case SYS_futex:
        return (place->args[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
#ifdef SYS_poll
    case SYS_poll:
    case SYS_select:
    case SYS_epoll_wait:
    case SYS_pause:
#endif
    case SYS_ppoll:
    case SYS_pselect6:
    case SYS_epoll_pwait:
    case SYS_read:
    case SYS_readv:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_accept:
    case SYS_accept4:
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
    case SYS_wait4:
    case SYS_waitid:
    case SYS_rt_sigsuspend:
        return 1;
    default:
        return 0;
    }
}

/* Is the stopped thread where it waited, or in code that is known to be safe? */
static int is_safe(const visit *self)
{
    const sonde_ptraced *traced = &self->traced;
    sonde_where where;
    if (traced->place.number >= 0)
        return sonde_registers_fit(&traced->was, &traced->place);
    /* The thread may be in a signal handler that has interrupted malloc: then the signal is
     * blocked. */
    if (traced->mask & self->caught)
        return 0;
    if (sonde_registers_where(traced->tid, &where) < 0)
        return 0;
    for (int i = 0; i < self->ranges_n; i++)
        if (where.pc >= self->ranges[i].start && where.pc < self->ranges[i].end)
            return 1;
    return 0;
}

/* Is the program still the one whose symbols were looked up? */
static int is_same_program(const visit *self)
{
    uint8_t found[PROOF_BYTES];
    for (int i = 0; i < SONDE_CALLS; i++)
        if (sonde_ptrace_read(&self->traced, found, self->calls[i], PROOF_BYTES) < 0 ||
            memcmp(found, self->proofs[i], PROOF_BYTES) != 0)
            return 0;
    return 1;
}

/* Do we no longer control the thread? It died, runs on alone, or cannot be stopped. */
static int is_gone(int status)
{
    return status == -ESRCH || status == -ETIMEDOUT || status == -EBUSY;
}

/* ---- the visit ------------------------------------------------------------------ */

/* A visitor's memory: its code, at the same place in a page as here, then its errand and the
 * Python source. */
typedef struct {
    size_t code_bytes, code_at, errand_at, text_at, bytes;
} layout;

static layout lay_out(size_t source_bytes)
{
    layout to = {.code_bytes = (size_t)(__stop_sonde_visitor - __start_sonde_visitor)};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    to.code_at = (uintptr_t)__start_sonde_visitor % SONDE_PAGE;
    to.errand_at = (to.code_at + to.code_bytes + 15) & ~(size_t)15;
    to.text_at = to.errand_at + sizeof(sonde_errand);
    to.bytes = (to.text_at + source_bytes + page - 1) / page * page;
    return to;
}

static size_t offset_of(const void *function)
{
    return (uintptr_t)function - (uintptr_t)__start_sonde_visitor;
}

/* Write a visitor to `page`; `mate` is where the new thread's visitor lies. */
static int write_visitor(const visit *self, const layout *to, uint64_t page, uint64_t mate)
{
    sonde_errand errand = {
        .page = page,
        .bytes = to->bytes,
        .munmap = self->calls[SONDE_CALL_MUNMAP],
        .begin = mate + to->code_at + offset_of(sonde_visitor_begin),
        .errand = mate + to->errand_at,
        .source = page + to->text_at,
        .deadline_ns = self->traced.deadline_ns,
        .stack_bytes = STACK_BYTES,
    };
    memset(errand.every_signal, 0xff, sizeof errand.every_signal);
    memcpy(errand.calls, self->calls, sizeof errand.calls);
    uint8_t *copy = calloc(1, to->bytes);
    if (copy == NULL)
        return -ENOMEM;
    memcpy(copy + to->code_at, __start_sonde_visitor, to->code_bytes);
    memcpy(copy + to->errand_at, &errand, sizeof errand);
    memcpy(copy + to->text_at, self->source, self->source_bytes);
    size_t used = (to->text_at + self->source_bytes + 7) & ~(size_t)7;
    int status = sonde_ptrace_write(&self->traced, page, copy, used);
    free(copy);
    return status;
}

static int make_room(visit *self, size_t bytes, uint64_t *page)
{
    /* Readable and executable: we write it by ptrace, so it need not be writable there. */
    const uint64_t args[6] = {0, bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS,
                              (uint64_t)-1, 0};
    int status = sonde_ptrace_call(&self->traced, self->calls[SONDE_CALL_MMAP], args);
    int64_t result = self->traced.result;
    if (status < 0)
        return status;
    if (result < 0 && result >= -4095)
        return (int)result;
    *page = (uint64_t)result;
    return 0;
}

static int give_back(visit *self, uint64_t page, size_t bytes)
{
    const uint64_t args[6] = {page, bytes};
    return sonde_ptrace_call(&self->traced, self->calls[SONDE_CALL_MUNMAP], args);
}

/* Put two visitors into the process, and have the stopped thread run the first, which starts a
 * thread that runs the second. */
static int pay_visit(visit *self)
{
    layout to = lay_out(self->source_bytes);
    uint64_t page;
    int status = make_room(self, 2 * to.bytes, &page);
    if (status < 0)
        return status;
    status = write_visitor(self, &to, page, page + to.bytes);
    if (status == 0)
        status = write_visitor(self, &to, page + to.bytes, page + to.bytes);
    if (status == 0) {
        const uint64_t args[6] = {page + to.errand_at};
        uint64_t entry = page + to.code_at + offset_of(sonde_visitor_visit);
        status = sonde_ptrace_call(&self->traced, entry, args);
        if (status == 0)
            status = -(int)self->traced.answer;
    }
    if (is_gone(status))
        return status;
    /* If the new thread exists, it frees the second half itself. */
    int left = give_back(self, page, status == 0 ? to.bytes : 2 * to.bytes);
    return is_gone(left) ? left : status;
}

/* Return the id of the new thread; 0 if this one was not at a safe place; or -errno. */
static int try_visit(void *of)
{
    visit *self = of;
    sonde_ptraced *traced = &self->traced;
    int status = sonde_ptrace_place(traced);
    if (status < 0)
        return status;
    /* A thread that cannot be at a safe place is not even stopped. */
    if (traced->place.number == SONDE_RUNS ? self->ranges_n == 0 : !is_patient(&traced->place))
        return 0;
    status = sonde_ptrace_stop(traced);
    if (status < 0)
        return status;
    int is_done = 0;
    if (is_safe(self)) {
        status = is_same_program(self) ? pay_visit(self) : -ESTALE;
        is_done = status == 0;
        if (status == -ENOBUFS)
            status = 0; /* try another thread, or another moment */
    }
    if (is_gone(status))
        return status;
    int left = sonde_ptrace_release(traced);
    return status < 0 ? status : left < 0 && !is_done ? left : is_done ? traced->made : 0;
}

/* ---- the Python face ---------------------------------------------------------------- */

static int take_ranges(visit *self, PyObject *list)
{
    self->ranges_n = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list) && self->ranges_n < MAX_RANGES; i++) {
        unsigned long long start, end;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "KK", &start, &end))
            return -1;
        self->ranges[self->ranges_n++] = (range){start, end};
    }
    return 0;
}

static int take_calls(visit *self, PyObject *list)
{
    if (PyList_GET_SIZE(list) != SONDE_CALLS) {
        PyErr_SetString(PyExc_ValueError, "expected an address and a proof for each of VISIT_CALLS");
        return -1;
    }
    for (int i = 0; i < SONDE_CALLS; i++) {
        unsigned long long address;
        const char *proof;
        Py_ssize_t bytes;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "Ky#", &address, &proof, &bytes))
            return -1;
        if (bytes != PROOF_BYTES) {
            PyErr_SetString(PyExc_ValueError, "a proof must have 16 bytes");
            return -1;
        }
        self->calls[i] = address;
        memcpy(self->proofs[i], proof, PROOF_BYTES);
    }
    return 0;
}

static PyObject *core_visit(PyObject *Py_UNUSED(module), PyObject *args)
{
    static visit self; /* large; one visit at a time: the GIL is held */
    PyObject *ranges, *calls;
    Py_ssize_t bytes;
    long long deadline_ns;
    unsigned long long caught, restorer;
    if (!PyArg_ParseTuple(args, "iiO!KKO!y#L", &self.traced.pid, &self.traced.tid, &PyList_Type,
                          &ranges, &caught, &restorer, &PyList_Type, &calls, &self.source, &bytes,
                          &deadline_ns) ||
        take_ranges(&self, ranges) < 0 || take_calls(&self, calls) < 0)
        return NULL;
    self.source_bytes = (size_t)bytes + 1;
    self.caught = caught;
    self.traced.restorer = restorer;
    self.traced.deadline_ns = deadline_ns;
    sigset_t all, before;
    sigfillset(&all);
    /* Whatever would end the tool, except SIGKILL, waits until the thread is back. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = sonde_tracer_run(try_visit, &self);
    /* There are machines on which a process may trace its children, and nobody else may. */
    if (status == -EPERM)
        status = try_visit(&self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status < 0) {
        errno = -status;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromLong(status);
}

PyObject *sonde_visit_calls(void)
{
    PyObject *tuple = PyTuple_New(SONDE_CALLS);
    for (Py_ssize_t i = 0; tuple != NULL && i < SONDE_CALLS; i++) {
        PyObject *name = PyUnicode_FromString(names[i]);
        if (name == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, name);
    }
    return tuple;
}

PyMethodDef sonde_visit_methods[] = {
    {"visit", core_visit, METH_VARARGS,
     "visit(pid, tid, ranges, caught, restorer, calls, source, deadline_ns): have a thread of another\n"
     "process start a new thread that runs this Python source. Returns the id of the new thread, or 0\n"
     "if the given thread is not at a safe place now."},
    {NULL, NULL, 0, NULL},
};
