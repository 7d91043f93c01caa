/* NestingCheck: do the regions of a process simply lie inside each other on their threads?
 *
 * Nearly all do, and then a timeline can draw them as they are. Python has the same check, and
 * decides about those that do not, but takes fifty times as long. */
#include "events/events.h"

typedef struct {
    int64_t end_ns, id;
} open_region;

typedef struct {
    int64_t thread;
    size_t depth, room;
    open_region *open; /* the regions around the next one, the innermost last */
} thread_stack;

typedef struct {
    PyObject_HEAD
    thread_stack *stacks;
    size_t stacks_n;
} NestingCheckObject;

enum { COLUMNS = 6, ID = 0, PARENT, THREAD, END_THREAD, START, END };

static thread_stack *find_stack(NestingCheckObject *self, int64_t thread)
{
    for (size_t i = 0; i < self->stacks_n; i++)
        if (self->stacks[i].thread == thread)
            return &self->stacks[i];
    thread_stack *grown = PyMem_Realloc(self->stacks, (self->stacks_n + 1) * sizeof *grown);
    if (grown == NULL)
        return NULL;
    self->stacks = grown;
    grown[self->stacks_n] = (thread_stack){.thread = thread};
    return &grown[self->stacks_n++];
}

static int push(thread_stack *stack, int64_t id, int64_t end_ns)
{
    if (stack->depth == stack->room) {
        size_t room = stack->room ? 2 * stack->room : 16;
        open_region *grown = PyMem_Realloc(stack->open, room * sizeof *grown);
        if (grown == NULL)
            return -1;
        stack->open = grown;
        stack->room = room;
    }
    stack->open[stack->depth++] = (open_region){end_ns, id};
    return 0;
}

/* Check more regions. Returns 1 if all of them nest, 0 if one does not, -1 if there is no memory.
 * A parent of -1 means none. */
static int feed(NestingCheckObject *self, int64_t *const *column, size_t rows)
{
    thread_stack *stack = NULL;
    for (size_t i = 0; i < rows; i++) {
        int64_t thread = column[THREAD][i];
        if (stack == NULL || stack->thread != thread)
            stack = find_stack(self, thread);
        if (stack == NULL)
            return -1;
        while (stack->depth > 0 && stack->open[stack->depth - 1].end_ns <= column[START][i])
            stack->depth--;
        const open_region *around = stack->depth ? &stack->open[stack->depth - 1] : NULL;
        int is_inside = around == NULL ? column[PARENT][i] == -1
                                       : around->id == column[PARENT][i] &&
                                             column[END][i] <= around->end_ns;
        if (!is_inside || column[END_THREAD][i] != thread)
            return 0;
        if (push(stack, column[ID][i], column[END][i]) < 0)
            return -1;
    }
    return 1;
}

static PyObject *check_feed(PyObject *object, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer views[COLUMNS];
    int64_t *column[COLUMNS];
    int taken = 0, answer = -1;
    if (given != COLUMNS) {
        PyErr_SetString(PyExc_TypeError, "expected six columns");
        return NULL;
    }
    while (taken < COLUMNS && PyObject_GetBuffer(args[taken], &views[taken], PyBUF_SIMPLE) == 0) {
        column[taken] = views[taken].buf;
        taken++;
    }
    if (taken == COLUMNS) {
        answer = 1;
        for (int i = 1; i < COLUMNS; i++)
            if (views[i].len != views[0].len)
                answer = -1;
        if (answer < 0)
            PyErr_SetString(PyExc_ValueError, "expected columns of the same length");
        else if ((answer = feed((NestingCheckObject *)object, column, (size_t)views[0].len / 8)) < 0)
            PyErr_NoMemory();
    }
    while (taken > 0)
        PyBuffer_Release(&views[--taken]);
    return answer < 0 ? NULL : PyBool_FromLong(answer);
}

static void check_dealloc(PyObject *object)
{
    NestingCheckObject *self = (NestingCheckObject *)object;
    for (size_t i = 0; i < self->stacks_n; i++)
        PyMem_Free(self->stacks[i].open);
    PyMem_Free(self->stacks);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef check_methods[] = {
    {"feed", (PyCFunction)(void (*)(void))check_feed, METH_FASTCALL,
     "feed(ids, parents, threads, end_threads, starts, ends): return whether each of these regions, which\n"
     "start after those given before, lies inside its parent or in none. Buffers of 64-bit numbers."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject sonde_NestingCheckType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "sonde._core.NestingCheck",
    .tp_basicsize = sizeof(NestingCheckObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "NestingCheck(): the regions of one process, in the order of their start.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = check_dealloc,
    .tp_methods = check_methods,
};
