/* A device that does not exist: the functions that we call in CUDA's runtime and in torch's
 * library for it.
 *
 * `work(ns)` queues work, which is done in order; an event is done when everything before it is.
 * Work of 0 leaves the device waiting for the host. */
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
    int8_t type, index;
    int64_t id;
} stream;

static int64_t free_ns; /* when the device has done all that is queued */
static int recorded, device, is_capturing;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int64_t reach(void) { return free_ns > now_ns() ? free_ns : now_ns(); }

void work(int64_t ns) { free_ns = reach() + ns; }
int count_events(void) { return recorded; }
void use_device(int number) { device = number; }
void capture(int on) { is_capturing = on; }

int cudaEventCreateWithFlags(int64_t **event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof **event);
    return *event == NULL;
}

int cudaEventRecord(int64_t *event, void *on)
{
    (void)on;
    recorded++;
    *event = reach();
    return 0;
}

int cudaEventQuery(const int64_t *event) { return *event <= now_ns() ? 0 : 600; }

int cudaEventElapsedTime(float *ms, const int64_t *begin, const int64_t *end)
{
    *ms = (float)(*end - *begin) / 1e6f;
    return 0;
}

int cudaGetDevice(int *to)
{
    *to = device;
    return 0;
}

int cudaSetDevice(int to) { return to < 0; }

int cudaStreamIsCapturing(void *one, int *to)
{
    (void)one;
    *to = is_capturing;
    return 0;
}

int cudaGetLastError(void) { return 0; }

int cudaThreadExchangeStreamCaptureMode(int *mode) { return *mode < 0; }

stream _ZN3c104cuda20getCurrentCUDAStreamEa(int8_t of) { return (stream){1, of, 7}; }

void *_ZNK3c104cuda10CUDAStream6streamEv(const stream *one) { return (void *)(uintptr_t)one->id; }
