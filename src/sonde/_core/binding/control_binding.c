/* The control page for Python: the job's side, and that of the tool that controls the job. */
#include "binding/binding.h"
#include "kernel/map_guard.h"

#include <string.h>

/* How late we notice a change whose sender died before waking us. */
#define RUN_CHECK_NS 20000000

static sonde_control *page_of(PyObject *map, int writable)
{
    sonde_control *page = sonde_map_memory(map, writable);
    if (page == NULL)
        return NULL;
    int status = sonde_control_verify(page, ((MapObject *)map)->bytes);
    if (status < 0)
        return (sonde_control *)sonde_raise(status, "control page");
    return page;
}

static PyObject *control_init(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    unsigned int pid;
    unsigned long long start_ticks;
    if (!PyArg_ParseTuple(args, "O!IK", &sonde_MapType, &map, &pid, &start_ticks))
        return NULL;
    void *mem = sonde_map_memory(map, 1);
    if (mem == NULL)
        return NULL;
    int status = sonde_control_init(mem, ((MapObject *)map)->bytes, pid, start_ticks);
    if (status < 0)
        return sonde_raise(status, "control page");
    Py_RETURN_NONE;
}

static PyObject *control_get(PyObject *Py_UNUSED(module), PyObject *map)
{
    const sonde_control *page = page_of(map, 0);
    if (page == NULL)
        return NULL;
    return Py_BuildValue(
        "{s:I,s:K,s:I,s:I,s:I,s:K,s:K,s:L,s:K,s:K,s:K,s:K,s:K,s:L,s:L,s:L,s:L,s:L,s:L,s:L,s:K,s:I}", "pid", page->pid, "start_ticks",
        (unsigned long long)page->start_ticks, "state", sonde_load_acquire(&page->state), "on",
        sonde_load_acquire(&page->on), "stop", sonde_load_acquire(&page->stop), "asked",
        (unsigned long long)sonde_load_acquire(&page->asked), "obeyed",
        (unsigned long long)sonde_load_acquire(&page->obeyed), "state_t_ns",
        (long long)sonde_load_acquire(&page->state_t_ns), "sampled",
        (unsigned long long)sonde_load_acquire(&page->sampled), "inspected",
        (unsigned long long)sonde_load_acquire(&page->inspected), "run_asked",
        (unsigned long long)sonde_load_acquire(&page->run_asked), "run_begun",
        (unsigned long long)sonde_load_acquire(&page->run_begun), "run_ended",
        (unsigned long long)sonde_load_acquire(&page->run_ended), "run_begin_t_ns",
        (long long)sonde_load_acquire(&page->run_begin_t_ns), "run_end_t_ns",
        (long long)sonde_load_acquire(&page->run_end_t_ns), "run_end_ns",
        (long long)sonde_load_acquire(&page->run_end_ns), "run_status",
        (long long)sonde_load_acquire(&page->run_status), "resumed_t_ns",
        (long long)sonde_load_relaxed(&page->resumed_t_ns), "paused_t_ns",
        (long long)sonde_load_relaxed(&page->paused_t_ns), "paused_ns",
        (long long)sonde_load_relaxed(&page->paused_ns), "pages_lost",
        (unsigned long long)sonde_load_relaxed(&page->pages_lost), "exit_status",
        sonde_load_relaxed(&page->exit_status));
}

static PyObject *control_state(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    unsigned int state;
    if (!PyArg_ParseTuple(args, "O!I", &sonde_MapType, &map, &state))
        return NULL;
    sonde_control *page = page_of(map, 1);
    if (page == NULL)
        return NULL;
    sonde_store_relaxed(&page->state_t_ns, sonde_clock_ns());
    sonde_store_relaxed(&page->pages_lost, sonde_guard_lost());
    /* Release: the time is stored before the state that it belongs to. */
    sonde_store_release(&page->state, state);
    Py_RETURN_NONE;
}

static PyObject *control_on(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    int on;
    if (!PyArg_ParseTuple(args, "O!p", &sonde_MapType, &map, &on))
        return NULL;
    sonde_control *page = page_of(map, 1);
    if (page == NULL)
        return NULL;
    sonde_control_on(page, (uint32_t)on);
    sonde_control_ring(page); /* a sleeping sampler starts again at once */
    Py_RETURN_NONE;
}

static PyObject *control_ask(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    int stop = 0;
    if (!PyArg_ParseTuple(args, "O!|p", &sonde_MapType, &map, &stop))
        return NULL;
    sonde_control *page = page_of(map, 1);
    if (page == NULL)
        return NULL;
    if (stop)
        sonde_store_release(&page->stop, 1);
    uint64_t epoch = sonde_increment_ordered(&page->asked);
    sonde_control_ring(page);
    return PyLong_FromUnsignedLongLong(epoch);
}

/* Ask for something that the page has a pair of numbers for: requests and answers. */
static PyObject *control_request(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    const char *what;
    if (!PyArg_ParseTuple(args, "O!s", &sonde_MapType, &map, &what))
        return NULL;
    sonde_control *page = page_of(map, 1);
    if (page == NULL)
        return NULL;
    uint64_t *asked = strcmp(what, "sample") == 0 ? &page->sample_asked : &page->inspect_asked;
    uint64_t number = sonde_increment_ordered(asked);
    sonde_control_ring(page);
    return PyLong_FromUnsignedLongLong(number);
}

static PyObject *run_start(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    const char *name;
    long long every_ns, end_ns;
    int sources;
    if (!PyArg_ParseTuple(args, "O!sLLp", &sonde_MapType, &map, &name, &every_ns, &end_ns, &sources))
        return NULL;
    sonde_control *page = page_of(map, 1);
    if (page == NULL)
        return NULL;
    if (strlen(name) >= SONDE_RUN_NAME)
        return PyErr_Format(PyExc_ValueError, "the name of a run must have fewer than 48 bytes");
    memset(page->run_name, 0, SONDE_RUN_NAME);
    memcpy(page->run_name, name, strlen(name));
    sonde_store_relaxed(&page->run_every_ns, (int64_t)every_ns);
    sonde_store_relaxed(&page->run_end_ns, (int64_t)end_ns);
    sonde_store_relaxed(&page->run_sources, (uint32_t)sources);
    /* Ordered: all of the request is visible before the number that makes it one. */
    uint64_t number = sonde_increment_ordered(&page->run_asked);
    sonde_control_ring(page);
    return PyLong_FromUnsignedLongLong(number);
}

static PyObject *run_name(PyObject *Py_UNUSED(module), PyObject *map)
{
    const sonde_control *page = page_of(map, 0);
    if (page == NULL)
        return NULL;
    size_t length = strnlen(page->run_name, SONDE_RUN_NAME);
    return PyUnicode_DecodeUTF8(page->run_name, (Py_ssize_t)length, "replace");
}

static PyObject *run_is_over(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "O!K", &sonde_MapType, &map, &number))
        return NULL;
    const sonde_control *page = page_of(map, 0);
    if (page == NULL)
        return NULL;
    return PyBool_FromLong(sonde_load_acquire(&page->run_ended) >= number);
}

static PyObject *run_stop(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "O!K", &sonde_MapType, &map, &number))
        return NULL;
    sonde_control *page = page_of(map, 1);
    if (page == NULL)
        return NULL;
    if (sonde_load_acquire(&page->run_asked) == number) {
        sonde_store_release(&page->run_end_ns, 0);
        sonde_control_ring(page);
    }
    Py_RETURN_NONE;
}

/* Sleep until this run has begun (or ended), but not past `end_ns`. Returns whether it has. */
static PyObject *run_wait(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    unsigned long long number;
    int ended;
    long long end_ns;
    if (!PyArg_ParseTuple(args, "O!KpL", &sonde_MapType, &map, &number, &ended, &end_ns))
        return NULL;
    sonde_control *page = page_of(map, 0);
    if (page == NULL)
        return NULL;
    const uint64_t *word = ended ? &page->run_ended : &page->run_begun;
    while (sonde_load_acquire(word) < number && sonde_clock_ns() < end_ns) {
        uint32_t seen = sonde_load_acquire(&page->run_bell);
        int64_t check_ns = sonde_clock_ns() + RUN_CHECK_NS;
        Py_BEGIN_ALLOW_THREADS
        if (sonde_load_acquire(word) < number)
            sonde_wait_until(&page->run_bell, seen, check_ns < end_ns ? check_ns : end_ns);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() < 0)
            return NULL;
    }
    return PyBool_FromLong(sonde_load_acquire(word) >= number);
}

static PyObject *control_obeyed(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *map;
    unsigned long long epoch;
    if (!PyArg_ParseTuple(args, "O!K", &sonde_MapType, &map, &epoch))
        return NULL;
    sonde_control *page = page_of(map, 1);
    if (page == NULL)
        return NULL;
    sonde_store_release(&page->obeyed, epoch);
    Py_RETURN_NONE;
}

PyMethodDef sonde_control_methods[] = {
    {"control_init", control_init, METH_VARARGS, "control_init(map, pid, start_ticks)."},
    {"control_get", control_get, METH_O, "control_get(map): return the values of the page, by name."},
    {"control_state", control_state, METH_VARARGS, "control_state(map, state): set the state of the job."},
    {"control_on", control_on, METH_VARARGS, "control_on(map, on): record rows, or pause."},
    {"control_ask", control_ask, METH_VARARGS,
     "control_ask(map, stop=False): make the job read its configuration again; returns the epoch that\n"
     "it is asked to apply."},
    {"control_request", control_request, METH_VARARGS,
     "control_request(map, what): ask to 'sample' all threads, or to 'inspect' their locals and\n"
     "tasks; returns the number of the request."},
    {"run_start", run_start, METH_VARARGS,
     "run_start(map, name, every_ns, end_ns, sources): begin a run; returns its number."},
    {"run_name", run_name, METH_O, "run_name(map): return the name of the run that was asked for last."},
    {"run_is_over", run_is_over, METH_VARARGS, "run_is_over(map, number): has that run ended?"},
    {"run_stop", run_stop, METH_VARARGS, "run_stop(map, number): end that run now."},
    {"run_wait", run_wait, METH_VARARGS,
     "run_wait(map, number, ended, end_ns): wait until that run has begun, or ended; returns\n"
     "whether it has."},
    {"control_obeyed", control_obeyed, METH_VARARGS, "control_obeyed(map, epoch): say that the job has applied the configuration of that epoch."},
    {NULL, NULL, 0, NULL},
};
