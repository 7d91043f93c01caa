/* Events of a CUDA device: recorded on the stream in use, read later, never waited for. */
#include "torch/torch.h"
#include "kernel/fork.h"

#include <dlfcn.h>
#include <string.h>

enum { POOL = 1 << 15, NOT_READY = 600, CAPTURE_RELAXED = 2, NEAR_NS = 2000 };

/* c10::cuda::CUDAStream, returned in two registers. */
typedef struct {
    int8_t type, index;
    int64_t id;
} torch_stream;

static struct {
    int (*create)(void **, unsigned);
    int (*record)(void *, void *);
    int (*query)(void *);
    int (*elapsed)(float *, void *, void *);
    int (*get_device)(int *);
    int (*set_device)(int);
    int (*is_capturing)(void *, int *);
    int (*last_error)(void);
    int (*capture_mode)(int *);
    torch_stream (*stream_of)(int8_t);
    void *(*handle_of)(const torch_stream *);
    uint32_t recorded; /* atomic */
    int32_t made, free_n;
    int32_t free[POOL];
    void *events[POOL];
    uint8_t devices[POOL];
    uint8_t users[POOL]; /* how many calls begin or end with each event */
} cuda;

static pthread_mutex_t cuda_lock = PTHREAD_MUTEX_INITIALIZER;
static int cuda_ready;

static int32_t take(void)
{
    int32_t event = -1;
    pthread_mutex_lock(&cuda_lock);
    if (cuda.free_n > 0)
        event = cuda.free[--cuda.free_n];
    else if (cuda.made < POOL && cuda.create(&cuda.events[cuda.made], 0) == 0)
        event = cuda.made++;
    if (event >= 0)
        cuda.users[event] = 1;
    pthread_mutex_unlock(&cuda_lock);
    return event;
}

void sonde_torch_event_free(int32_t event)
{
    if (event < 0)
        return;
    pthread_mutex_lock(&cuda_lock);
    if (--cuda.users[event] == 0)
        cuda.free[cuda.free_n++] = event;
    pthread_mutex_unlock(&cuda_lock);
}

int32_t sonde_torch_event(void)
{
    int device = 0, capturing = 1;
    if (!cuda_ready || cuda.get_device(&device) != 0)
        return -1;
    torch_stream stream = cuda.stream_of((int8_t)device);
    void *handle = cuda.handle_of(&stream);
    /* In a graph that is being captured, an event would become a part of the graph. */
    if (cuda.is_capturing(handle, &capturing) != 0 || capturing != 0)
        return -1;
    int32_t event = take();
    if (event < 0)
        return -1;
    if (cuda.record(cuda.events[event], handle) != 0) {
        (void)cuda.last_error(); /* the error is ours: the program's own checks must not find it */
        sonde_torch_event_free(event);
        cuda_ready = 0;
        return -1;
    }
    cuda.devices[event] = (uint8_t)device;
    sonde_add_relaxed(&cuda.recorded, 1u);
    return event;
}

/* Reuse an event of a moment ago: no kernel can be launched in so short a time, so the device has
 * done nothing in between, and each event makes a busy device wait a little. */
int32_t sonde_torch_event_near(sonde_torch_lane *lane)
{
    int64_t now_ns = sonde_clock_ns();
    if (lane->event_ns != 0 && now_ns - lane->event_ns < NEAR_NS) {
        pthread_mutex_lock(&cuda_lock);
        int is_kept = cuda.users[lane->event] > 0 && cuda.users[lane->event] < UINT8_MAX;
        cuda.users[lane->event] += (uint8_t)is_kept;
        pthread_mutex_unlock(&cuda_lock);
        if (is_kept)
            return lane->event;
    }
    lane->event = sonde_torch_event();
    lane->event_ns = lane->event < 0 ? 0 : now_ns;
    return lane->event;
}

int sonde_torch_event_done(int32_t event)
{
    int status = cuda.query(cuda.events[event]);
    if (status != 0)
        (void)cuda.last_error();
    return status == 0 ? 1 : status == NOT_READY ? 0 : -1;
}

double sonde_torch_event_span(int32_t begin, int32_t end)
{
    float ms;
    if (begin < 0 || end < 0 || cuda.devices[begin] != cuda.devices[end])
        return -1;
    if (cuda.elapsed(&ms, cuda.events[begin], cuda.events[end]) != 0) {
        (void)cuda.last_error();
        return -1;
    }
    return ms < 0 ? 0 : (double)ms / 1e3;
}

int8_t sonde_torch_device_now(void)
{
    int device = 0;
    return (int8_t)(!cuda_ready || cuda.get_device(&device) != 0 ? -1 : device);
}

int8_t sonde_torch_event_device(int32_t event) { return (int8_t)(event < 0 ? -1 : cuda.devices[event]); }

uint32_t sonde_torch_events(void) { return sonde_swap_relaxed(&cuda.recorded, 0); }

void sonde_torch_device_enter(void)
{
    static __thread int is_done;
    if (is_done || !cuda_ready || cuda.made == 0)
        return;
    is_done = 1;
    int mode = CAPTURE_RELAXED;
    /* Otherwise the first call here would make a context on device 0. */
    (void)cuda.set_device(cuda.devices[0]);
    /* Otherwise asking about an event here would break a capture in another thread. */
    (void)cuda.capture_mode(&mode);
    (void)cuda.last_error();
}

/* A thread of the parent may have held the lock, and CUDA does not work in a child. */
static void forget_in_child(void)
{
    SONDE_RESET(cuda_lock, PTHREAD_MUTEX_INITIALIZER);
    SONDE_RESET(cuda_ready, 0);
}

SONDE_IN_CHILD(forget_in_child)

static int find_all(void *runtime, void *c10)
{
    struct {
        void **to;
        void *library;
        const char *name;
    } wanted[] = {
        {(void **)&cuda.create, runtime, "cudaEventCreateWithFlags"},
        {(void **)&cuda.record, runtime, "cudaEventRecord"},
        {(void **)&cuda.query, runtime, "cudaEventQuery"},
        {(void **)&cuda.elapsed, runtime, "cudaEventElapsedTime"},
        {(void **)&cuda.get_device, runtime, "cudaGetDevice"},
        {(void **)&cuda.set_device, runtime, "cudaSetDevice"},
        {(void **)&cuda.is_capturing, runtime, "cudaStreamIsCapturing"},
        {(void **)&cuda.last_error, runtime, "cudaGetLastError"},
        {(void **)&cuda.capture_mode, runtime, "cudaThreadExchangeStreamCaptureMode"},
        {(void **)&cuda.stream_of, c10, "_ZN3c104cuda20getCurrentCUDAStreamEa"},
        {(void **)&cuda.handle_of, c10, "_ZNK3c104cuda10CUDAStream6streamEv"},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].to = dlsym(wanted[i].library, wanted[i].name);
        if (*wanted[i].to == NULL) {
            PyErr_Format(PyExc_OSError, "the function %s was not found", wanted[i].name);
            return -1;
        }
    }
    return 0;
}

/* torch_device(path of libcudart, path of libc10_cuda, device, stream): the stream that torch says it
 * uses on that device, to see that we find the same one. */
static PyObject *torch_device(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *runtime_path, *c10_path;
    int device;
    unsigned long long expected;
    if (!PyArg_ParseTuple(args, "ssiK", &runtime_path, &c10_path, &device, &expected))
        return NULL;
    void *runtime = dlopen(runtime_path, RTLD_NOW | RTLD_NOLOAD);
    void *c10 = dlopen(c10_path, RTLD_NOW | RTLD_NOLOAD);
    if (runtime == NULL || c10 == NULL)
        return PyErr_Format(PyExc_OSError, "CUDA's runtime is not loaded");
    if (find_all(runtime, c10) < 0)
        return NULL;
    torch_stream stream = cuda.stream_of((int8_t)device);
    if ((uintptr_t)cuda.handle_of(&stream) != (uintptr_t)expected)
        return PyErr_Format(PyExc_OSError, "torch's stream could not be found");
    cuda_ready = 1;
    Py_RETURN_NONE;
}

PyMethodDef sonde_device_methods[] = {
    {"torch_device", torch_device, METH_VARARGS,
     "torch_device(cudart, c10_cuda, device, stream): find the functions that record events of CUDA."},
    {NULL, NULL, 0, NULL},
};
