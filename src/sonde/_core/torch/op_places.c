/* Where operators of torch are called from: module and line, noted only while somebody looks into a step.
 *
 * Torch calls an observer when an operator begins, in whatever thread runs it, with or without the GIL.
 * The notes are matched by thread and time with what torch's profiler recorded. */
#include "torch/torch.h"
#include "torch/record_function.h"
#include "kernel/fork.h"
#include "kernel/thread.h"
#include "stacks/own_line.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 16 }; /* operators; those that come later have no place */

typedef struct {
    int64_t t_ns;
    int32_t tid, line;
    uint32_t module, func, file; /* text ids; 0: not known */
} op_place;

static struct {
    uint64_t handle;
    int is_added;     /* torch calls us; guarded by the GIL */
    uint32_t is_on;   /* atomic */
    pthread_mutex_t lock; /* guards what follows */
    op_place *notes;  /* NULL: nothing is noted */
    uint32_t notes_n;
    PyObject *text;
    char *folder;
} places = {.lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((visibility("hidden"))) void sonde_op_place_begins(const void *function);

void sonde_op_place_begins(const void *function)
{
    (void)function;
    if (!sonde_load_relaxed(&places.is_on))
        return;
    op_place place = {.t_ns = sonde_clock_ns(), .tid = (int32_t)sonde_find_tid()};
    pthread_mutex_lock(&places.lock);
    if (places.notes != NULL && places.notes_n < MOST) {
        sonde_own_line line = {0};
        if (sonde_own_line_find(&line, places.folder, sonde_text_table(places.text)) == 0) {
            place.line = line.line;
            place.func = line.func;
            place.file = line.file;
        }
        place.module = sonde_torch_find_now().module;
        places.notes[places.notes_n++] = place;
    }
    pthread_mutex_unlock(&places.lock);
}

SONDE_START_CALLBACK(sonde_op_place_start, sonde_op_place_begins)

static void ignore_end(const void *function, void *context)
{
    (void)function;
    (void)context;
}

static int add_observer(void *library)
{
    uint64_t (*add)(sonde_observer) = (uint64_t(*)(sonde_observer))dlsym(library, SONDE_ADD_OBSERVER);
    if (places.is_added)
        return 0; /* by the process that this one was forked from */
    if (add == NULL)
        return -1;
    sonde_observer ours = {.start = (void *)sonde_op_place_start, .end = (void *)ignore_end, .probability = 1.0};
    ours.scopes_and_needs[SONDE_SCOPE_FUNCTION] = ours.scopes_and_needs[SONDE_SCOPE_BACKWARD] =
        ours.scopes_and_needs[SONDE_SCOPE_USER] = 1;
    places.handle = add(ours);
    places.is_added = 1;
    return 0;
}

static void remove_observer(void *library)
{
    void (*drop)(uint64_t) = (void (*)(uint64_t))dlsym(library, SONDE_REMOVE_OBSERVER);
    if (places.is_added && drop != NULL) {
        drop(places.handle);
        places.is_added = 0;
    }
}

static void *open_library(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL)
        PyErr_Format(PyExc_OSError, "%s is not loaded", path);
    return library;
}

static PyObject *op_places_start(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *text;
    const char *path, *folder;
    if (!PyArg_ParseTuple(args, "O!ss", &sonde_TextType, &text, &path, &folder))
        return NULL;
    void *library = open_library(path);
    if (library == NULL)
        return NULL;
    op_place *notes = malloc(MOST * sizeof *notes);
    char *copy = strdup(folder);
    if (notes == NULL || copy == NULL) {
        free(notes);
        free(copy);
        return PyErr_NoMemory();
    }
    pthread_mutex_lock(&places.lock);
    op_place *old_notes = places.notes;
    char *old_folder = places.folder;
    PyObject *old_text = places.text;
    places.notes = notes;
    places.notes_n = 0;
    places.folder = copy;
    places.text = Py_NewRef(text);
    pthread_mutex_unlock(&places.lock);
    free(old_notes);
    free(old_folder);
    Py_XDECREF(old_text);
    sonde_store_relaxed(&places.is_on, 1u);
    if (add_observer(library) < 0) {
        PyErr_SetString(PyExc_OSError, "torch does not tell of its operators");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *make_text(PyObject *text, uint32_t id)
{
    uint32_t bytes = 0;
    const char *found = id == 0 ? NULL : sonde_intern_get(sonde_text_table(text), id, &bytes);
    if (found == NULL)
        return Py_NewRef(Py_None);
    return PyUnicode_DecodeUTF8(found, (Py_ssize_t)bytes, "backslashreplace");
}

static PyObject *list_places(PyObject *text, const op_place *notes, uint32_t notes_n)
{
    PyObject *found = PyList_New(0);
    for (uint32_t i = 0; i < notes_n && found != NULL; i++) {
        const op_place *note = &notes[i];
        PyObject *line = note->file == 0 ? Py_NewRef(Py_None) : PyLong_FromLong(note->line);
        PyObject *row = Py_BuildValue("iLNNNN", note->tid, (long long)note->t_ns, make_text(text, note->module),
                                      make_text(text, note->func), make_text(text, note->file), line);
        if (row == NULL || PyList_Append(found, row) < 0)
            Py_CLEAR(found);
        Py_XDECREF(row);
    }
    return found;
}

static PyObject *op_places_take(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *path;
    if (!PyArg_ParseTuple(args, "s", &path))
        return NULL;
    void *library = open_library(path);
    if (library == NULL)
        return NULL;
    sonde_store_relaxed(&places.is_on, 0u);
    remove_observer(library);
    pthread_mutex_lock(&places.lock);
    op_place *notes = places.notes;
    uint32_t notes_n = places.notes_n;
    PyObject *text = places.text;
    char *folder = places.folder;
    places.notes = NULL;
    places.text = NULL;
    places.folder = NULL;
    pthread_mutex_unlock(&places.lock);
    PyObject *found = list_places(text, notes, notes == NULL ? 0 : notes_n);
    free(notes);
    free(folder);
    Py_XDECREF(text);
    return found;
}

/* Torch goes on calling us; the notes are the parent's. */
static void forget_in_child(void)
{
    SONDE_RESET(places.lock, PTHREAD_MUTEX_INITIALIZER);
    SONDE_RESET(places.is_on, 0);
}

SONDE_IN_CHILD(forget_in_child)

PyMethodDef sonde_op_places_methods[] = {
    {"op_places_start", op_places_start, METH_VARARGS,
     "op_places_start(text, libtorch_cpu, folder): note where each operator is called from."},
    {"op_places_take", op_places_take, METH_VARARGS,
     "op_places_take(libtorch_cpu): end that; return (thread, t_ns, module, func, file, lineno) of each."},
    {NULL, NULL, 0, NULL},
};
