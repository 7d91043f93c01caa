/* The calls of CUDA's runtime that torch makes: waits, copies, memory and launches.
 *
 * Torch's libraries call the runtime through linkage slots. Ours stand in these slots and call the
 * runtime's functions in turn, so the program's own profiler, which looks from inside the runtime,
 * sees what it saw before. */
#include "torch/cuda_calls.h"
#include "kernel/linkage_slot.h"

#include <dlfcn.h>
#include <string.h>

enum { LIBRARIES = 8, ASK_BYTES = 1 << 16 /* copies from this size on are worth a question */ };
enum { MEMORY_UNKNOWN = 0, MEMORY_HOST = 1 };

#define NAME_OF(name, kind) #name,
static const char *const names[] = {SONDE_CUDA_CALLS(NAME_OF)};

static struct {
    sonde_linkage_slot slots[LIBRARIES][SONDE_CUDA_CALLS_N]; /* guarded by the GIL, as is the next */
    int libraries;
    void *originals[SONDE_CUDA_CALLS_N];
    int (*attributes)(void *, const void *);
    int (*is_capturing)(void *, int *);
    int (*peek_error)(void);
    int (*last_error)(void);
} runtime;

/* Is this memory of the host pinned? 1, 0, or -1: not known. */
static int ask_pinned(const void *host, void *stream, int64_t bytes)
{
    /* More room than the structure has in any version; its first word is the kind of memory. */
    union {
        int kind;
        char room[512];
    } about = {0};
    int capturing = 1;
    if (bytes < ASK_BYTES || runtime.attributes == NULL || runtime.peek_error() != 0 ||
        runtime.is_capturing(stream, &capturing) != 0 || capturing != 0)
        return -1;
    if (runtime.attributes(&about, host) != 0) {
        (void)runtime.last_error(); /* it is ours: there was none before */
        return -1;
    }
    return about.kind == MEMORY_HOST ? 1 : about.kind == MEMORY_UNKNOWN ? 0 : -1;
}

/* Fill in how long the call took that began then. */
static inline void set_times(sonde_cuda_seen *seen, sonde_instant begin)
{
    seen->end = sonde_instant_after(begin);
    seen->dur_ns = sonde_instant_apart(begin, seen->end);
}

static void note_copy(sonde_cuda_seen *seen, sonde_instant begin, void *to, const void *from)
{
    set_times(seen, begin);
    if (seen->direction < 0 || seen->direction >= SONDE_CUDA_DIRECTIONS)
        seen->direction = SONDE_CUDA_DIRECTIONS - 1;
    if (seen->direction == SONDE_CUDA_TO_DEVICE)
        seen->is_pinned = ask_pinned(from, seen->stream, seen->bytes);
    else if (seen->direction == SONDE_CUDA_TO_HOST)
        seen->is_pinned = ask_pinned(to, seen->stream, seen->bytes);
    sonde_cuda_note(seen);
}

static void note(enum sonde_cuda_call call, sonde_instant begin, int64_t bytes, const void *stream, int has_stream)
{
    sonde_cuda_seen seen = {call, {0, 0}, 0, bytes, -1, -1, has_stream, (void *)stream};
    set_times(&seen, begin);
    sonde_cuda_note(&seen);
}

/* ---- what stands in the slots -------------------------------------------------------------------- */

/* Define the function that stands for `name`: it calls the original, and then has `noted` done. */
#define CALL(name, parameters, arguments, noted)                        \
    static int our_##name parameters                                    \
    {                                                                   \
        int(*original) parameters;                                      \
        memcpy(&original, &runtime.originals[SONDE_CUDA_##name], sizeof original); \
        if (!sonde_cuda_is_on())                                        \
            return original arguments;                                  \
        sonde_instant begin = sonde_instant_now();                        \
        int status = original arguments;                                \
        noted;                                                          \
        return status;                                                  \
    }

/* The same for a launch, which is only counted: there are many, and they are short. */
#define LAUNCH(name, parameters, arguments)                             \
    static int our_##name parameters                                    \
    {                                                                   \
        int(*original) parameters;                                      \
        memcpy(&original, &runtime.originals[SONDE_CUDA_##name], sizeof original); \
        if (sonde_cuda_is_on())                                         \
            sonde_cuda_count(SONDE_CUDA_##name);                        \
        return original arguments;                                      \
    }

#define COPIED(name, bytes, way, stream, to, from)                      \
    note_copy(&(sonde_cuda_seen){SONDE_CUDA_##name, {0, 0}, 0, (int64_t)(bytes), (way), -1, 1, (stream)}, begin,  \
              (to), (from))

typedef struct {
    unsigned x, y, z;
} three;

CALL(cudaDeviceSynchronize, (void), (), note(SONDE_CUDA_cudaDeviceSynchronize, begin, -1, NULL, 0))
CALL(cudaStreamSynchronize, (void *stream), (stream), note(SONDE_CUDA_cudaStreamSynchronize, begin, -1, stream, 1))
CALL(cudaEventSynchronize, (void *event), (event), note(SONDE_CUDA_cudaEventSynchronize, begin, -1, NULL, 0))
CALL(cudaMemcpy, (void *to, const void *from, size_t bytes, int way), (to, from, bytes, way),
     COPIED(cudaMemcpy, bytes, way, NULL, to, from))
CALL(cudaMemcpyAsync, (void *to, const void *from, size_t bytes, int way, void *stream),
     (to, from, bytes, way, stream), COPIED(cudaMemcpyAsync, bytes, way, stream, to, from))
CALL(cudaMemcpy2DAsync,
     (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int way,
      void *stream),
     (to, to_pitch, from, from_pitch, width, height, way, stream),
     COPIED(cudaMemcpy2DAsync, width *height, way, stream, to, from))
CALL(cudaMemcpyPeerAsync,
     (void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream),
     (to, to_device, from, from_device, bytes, stream), COPIED(cudaMemcpyPeerAsync, bytes, 3, stream, to, from))
CALL(cudaMalloc, (void **at, size_t bytes), (at, bytes),
     note(SONDE_CUDA_cudaMalloc, begin, (int64_t)bytes, NULL, 0))
CALL(cudaMallocAsync, (void **at, size_t bytes, void *stream), (at, bytes, stream),
     note(SONDE_CUDA_cudaMallocAsync, begin, (int64_t)bytes, stream, 1))
CALL(cudaHostAlloc, (void **at, size_t bytes, unsigned flags), (at, bytes, flags),
     note(SONDE_CUDA_cudaHostAlloc, begin, (int64_t)bytes, NULL, 0))
CALL(cudaHostRegister, (void *at, size_t bytes, unsigned flags), (at, bytes, flags),
     note(SONDE_CUDA_cudaHostRegister, begin, (int64_t)bytes, NULL, 0))
CALL(cudaFree, (void *at), (at), note(SONDE_CUDA_cudaFree, begin, -1, NULL, 0))
CALL(cudaFreeAsync, (void *at, void *stream), (at, stream), note(SONDE_CUDA_cudaFreeAsync, begin, -1, stream, 1))
CALL(cudaFreeHost, (void *at), (at), note(SONDE_CUDA_cudaFreeHost, begin, -1, NULL, 0))
CALL(cudaHostUnregister, (void *at), (at), note(SONDE_CUDA_cudaHostUnregister, begin, -1, NULL, 0))
LAUNCH(cudaLaunchKernel,
       (const void *function, three grid, three block, void **arguments, size_t shared, void *stream),
       (function, grid, block, arguments, shared, stream))
LAUNCH(__cudaLaunchKernel,
       (void *kernel, three grid, three block, void **arguments, size_t shared, void *stream),
       (kernel, grid, block, arguments, shared, stream))
LAUNCH(cudaLaunchKernelExC, (const void *config, const void *function, void **arguments),
       (config, function, arguments))
LAUNCH(cudaGraphLaunch, (void *graph, void *stream), (graph, stream))

#define OURS_OF(name, kind) (void *)our_##name,
static void *const ours[] = {SONDE_CUDA_CALLS(OURS_OF)};

/* ---- on and off ------------------------------------------------------------------------------------ */

static void find_runtime(void *origin)
{
    for (int i = 0; i < SONDE_CUDA_CALLS_N; i++)
        runtime.originals[i] = dlsym(origin, names[i]);
    runtime.attributes = (int (*)(void *, const void *))dlsym(origin, "cudaPointerGetAttributes");
    runtime.is_capturing = (int (*)(void *, int *))dlsym(origin, "cudaStreamIsCapturing");
    runtime.peek_error = (int (*)(void))dlsym(origin, "cudaPeekAtLastError");
    runtime.last_error = (int (*)(void))dlsym(origin, "cudaGetLastError");
    if (runtime.is_capturing == NULL || runtime.peek_error == NULL || runtime.last_error == NULL)
        runtime.attributes = NULL;
}

/* Take the slots of a library. Returns how many. */
static int take_slots(void *library, void *origin)
{
    int taken = 0;
    sonde_linkage_slot *slots = runtime.slots[runtime.libraries++];
    sonde_linkage_imports_find(slots, library, origin, names, SONDE_CUDA_CALLS_N);
    for (int i = 0; i < SONDE_CUDA_CALLS_N; i++)
        taken += sonde_linkage_slot_take(&slots[i], ours[i]) == 0;
    return taken;
}

static void give_back(void)
{
    for (int at = 0; at < runtime.libraries; at++)
        for (int i = 0; i < SONDE_CUDA_CALLS_N; i++)
            sonde_linkage_slot_give_back(&runtime.slots[at][i], ours[i]);
    runtime.libraries = 0;
}

static PyObject *cuda_calls_start(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *writer, *text, *page, *libraries;
    const char *folder, *clocksource;
    void *origin = NULL; /* the first library: the runtime is the one that it has loaded */
    int taken = 0;
    if (!PyArg_ParseTuple(args, "O!O!O!O!ss", &sonde_WriterType, &writer, &sonde_TextType, &text, &sonde_MapType,
                          &page, &PyTuple_Type, &libraries, &folder, &clocksource))
        return NULL;
    sonde_instant_begin(clocksource);
    give_back(); /* those that were taken by the process from which this one was forked */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(libraries) && runtime.libraries < LIBRARIES; i++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(libraries, i));
        void *library = name == NULL ? NULL : dlopen(name, RTLD_NOW | RTLD_NOLOAD);
        if (library == NULL && i > 0 && !PyErr_Occurred())
            continue;
        if (library == NULL)
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_OSError, "%s is not loaded", name);
        if (i == 0) {
            find_runtime(origin = library);
            if (sonde_cuda_rows_start(writer, text, page, folder, origin) < 0)
                return NULL;
        }
        taken += take_slots(library, origin);
    }
    return PyLong_FromLong(taken);
}

static PyObject *cuda_calls_stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    give_back();
    sonde_cuda_rows_stop();
    Py_RETURN_NONE;
}

static PyObject *cuda_calls_flush(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    sonde_cuda_rows_flush();
    Py_RETURN_NONE;
}

PyMethodDef sonde_cuda_calls_methods[] = {
    {"cuda_calls_start", cuda_calls_start, METH_VARARGS,
     "cuda_calls_start(writer, text, page, libraries, folder, clocksource): have the calls written that these\n"
     "libraries, of which the first is loaded, make to CUDA's runtime; lines of files in the folder are not the\n"
     "program's. `clocksource`: see instant.h. Returns how many linkage slots were taken."},
    {"cuda_calls_stop", cuda_calls_stop, METH_NOARGS, "Write no more calls of CUDA's runtime."},
    {"cuda_calls_flush", cuda_calls_flush, METH_NOARGS, "Write the sums of short calls now."},
    {NULL, NULL, 0, NULL},
};
