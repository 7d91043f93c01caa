/* Rows of the calls of CUDA's runtime: one for each call that takes long, sums of all others.
 *
 * A call that takes long has time for a row of its own, with the line of the program. Of the others,
 * of which there may be thousands in a step, only sums are written: of short waits for a device after
 * every sixteenth, with the line of that one, so that lines get what they take in the long run; of all
 * else once a second. */
#include "torch/cuda_calls.h"
#include "kernel/fork.h"
#include "kernel/thread.h"
#include "stacks/own_line.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONG_NS = 20000, FLUSH_NS = 1000000000, MOST_ROWS = 500 /* from one flush to the next */ };
enum { WAITS = 16 /* short ones that make a row */ };
enum { PINNED_STATES = 3, DIRECTIONS = SONDE_CUDA_DIRECTIONS + 1 };

#define KINDS "qqqqQqqIttttttt?"
typedef struct {
    int64_t t_ns, dur_ns, bytes, thread;
    uint64_t stream;
    int64_t step, lineno;
    uint32_t calls, call, kind, direction, device, module, func, file;
    uint8_t pinned;
} cuda_row;

_Static_assert(sizeof(cuda_row) == 96, "cuda_call layout");

enum { /* optional columns that are NULL */
    NO_DURATION = 1, NO_BYTES = 2, NO_THREAD = 4, NO_STREAM = 8, NO_STEP = 16, NO_LINE = 32, NO_DIRECTION = 64,
    NO_DEVICE = 128, NO_MODULE = 256, NO_FUNC = 512, NO_FILE = 1024, NO_PINNED = 2048,
};

typedef struct {
    uint64_t calls; /* atomic, as are the others */
    int64_t dur_ns, bytes;
} cuda_sum;

#define NAME_OF(name, kind) #name,
#define KIND_OF(name, kind) SONDE_CUDA_##kind,
static const char *const call_names[] = {SONDE_CUDA_CALLS(NAME_OF)};
static const enum sonde_cuda_kind kinds[] = {SONDE_CUDA_CALLS(KIND_OF)};
static const char *const kind_names[SONDE_CUDA_KINDS] = {"synchronize", "copy", "allocate", "free", "launch"};
static const char *const direction_names[SONDE_CUDA_DIRECTIONS] = {
    "host to host", "host to device", "device to host", "device to device", "not said"};

static struct {
    uint32_t is_on;     /* atomic */
    uint32_t rows;      /* atomic: since the last flush */
    int64_t flushed_ns; /* atomic, as are the next two */
    int64_t flushed_at; /* the same moment, see instant.h, */
    int64_t flush_after; /* and when it is due again */
    cuda_sum sums[SONDE_CUDA_CALLS_N][DIRECTIONS][PINNED_STATES];
    pthread_mutex_t lock; /* guards what follows */
    PyObject *ring_map, *text, *page_map; /* NULL: there is nothing to write to */
    sonde_ring_handle ring;
    const sonde_intern_handle *texts;
    const uint32_t *allowed; /* in the control page: are rows wanted? */
    char *folder;
    int (*get_device)(int *);
    uint32_t call_texts[SONDE_CUDA_CALLS_N], kind_texts[SONDE_CUDA_KINDS], direction_texts[SONDE_CUDA_DIRECTIONS];
} cuda = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint32_t put(const char *text) { return sonde_intern_put(cuda.texts, text, (uint32_t)strlen(text)); }

static void append(const cuda_row *row, uint32_t nulls)
{
    uint64_t words[sizeof *row / 8];
    memcpy(words, row, sizeof words);
    (void)sonde_ring_append(&cuda.ring, words, nulls); /* a drop is counted there */
}

/* ---- sums ---------------------------------------------------------------------------------- */

static void write_sum(int call, int direction, int pinned, int64_t since_ns)
{
    cuda_sum *sum = &cuda.sums[call][direction][pinned];
    uint64_t calls = sonde_swap_relaxed(&sum->calls, 0);
    int64_t dur_ns = sonde_swap_relaxed(&sum->dur_ns, 0), bytes = sonde_swap_relaxed(&sum->bytes, 0);
    if (calls == 0)
        return;
    uint32_t nulls = NO_THREAD | NO_STREAM | NO_STEP | NO_LINE | NO_DEVICE | NO_MODULE | NO_FUNC | NO_FILE;
    cuda_row row = {.t_ns = since_ns, .dur_ns = dur_ns, .bytes = bytes,
                    .calls = calls > UINT32_MAX ? UINT32_MAX : (uint32_t)calls, .call = cuda.call_texts[call],
                    .kind = cuda.kind_texts[kinds[call]], .pinned = pinned == 2};
    if (direction > 0)
        row.direction = cuda.direction_texts[direction - 1];
    nulls |= (direction == 0 ? NO_DIRECTION : 0) | (pinned == 0 ? NO_PINNED : 0) |
             (kinds[call] == SONDE_CUDA_LAUNCH ? NO_DURATION : 0) | (bytes == 0 ? NO_BYTES : 0);
    append(&row, nulls);
}

static void begin_period(void)
{
    sonde_instant now = sonde_instant_now();
    sonde_store_relaxed(&cuda.flush_after, sonde_instant_length(now, FLUSH_NS));
    sonde_store_relaxed(&cuda.flushed_at, now.at);
}

/* The lock is held. */
static void write_sums(int64_t now_ns)
{
    int64_t since_ns = sonde_swap_relaxed(&cuda.flushed_ns, now_ns);
    sonde_instant_check();
    begin_period();
    sonde_store_relaxed(&cuda.rows, 0u);
    if (cuda.ring_map == NULL)
        return;
    for (int call = 0; call < SONDE_CUDA_CALLS_N; call++)
        for (int direction = 0; direction < DIRECTIONS; direction++)
            for (int pinned = 0; pinned < PINNED_STATES; pinned++)
                write_sum(call, direction, pinned, since_ns);
}

/* `now` may be the reading of another counter than the last: then it is due too early, or with the next call. */
static void flush_if_due(sonde_instant now)
{
    /* Whoever comes while another one writes has nothing to do. */
    if (now.at - sonde_load_relaxed(&cuda.flushed_at) < sonde_load_relaxed(&cuda.flush_after) ||
        pthread_mutex_trylock(&cuda.lock) != 0)
        return;
    int64_t now_ns = sonde_clock_ns();
    if (now_ns - cuda.flushed_ns >= FLUSH_NS / 2) /* else another one has just done it */
        write_sums(now_ns);
    pthread_mutex_unlock(&cuda.lock);
}

void sonde_cuda_rows_flush(void)
{
    pthread_mutex_lock(&cuda.lock);
    write_sums(sonde_clock_ns());
    pthread_mutex_unlock(&cuda.lock);
}

/* ---- one row --------------------------------------------------------------------------------- */

static uint32_t put_device(void)
{
    char name[24];
    int device = -1;
    if (cuda.get_device == NULL || cuda.get_device(&device) != 0)
        return 0;
    (void)snprintf(name, sizeof name, "cuda:%d", device);
    return put(name);
}

/* Write a row about this call, which stands for so many. The lock is held. */
static void write_row(const sonde_cuda_seen *seen, cuda_sum of)
{
    sonde_torch_now now = sonde_torch_find_now();
    sonde_own_line line = {0};
    int has_line = sonde_own_line_find(&line, cuda.folder, cuda.texts) == 0;
    cuda_row row = {
        .t_ns = sonde_clock_ns() - seen->dur_ns, .dur_ns = of.dur_ns, .bytes = of.bytes,
        .thread = sonde_find_tid(), .stream = (uint64_t)(uintptr_t)seen->stream, .step = now.step,
        .lineno = line.line, .calls = (uint32_t)of.calls, .call = cuda.call_texts[seen->call],
        .kind = cuda.kind_texts[kinds[seen->call]], .device = put_device(), .module = now.module,
        .func = line.func, .file = line.file, .pinned = seen->is_pinned == 1,
    };
    if (seen->direction >= 0)
        row.direction = cuda.direction_texts[seen->direction];
    append(&row, (seen->bytes < 0 ? NO_BYTES : 0) | (seen->has_stream ? 0 : NO_STREAM) |
                     (now.step < 0 ? NO_STEP : 0) | (has_line ? 0 : NO_LINE | NO_FUNC | NO_FILE) |
                     (seen->direction < 0 ? NO_DIRECTION : 0) | (row.device == 0 ? NO_DEVICE : 0) |
                     (row.module == 0 ? NO_MODULE : 0) | (seen->is_pinned < 0 ? NO_PINNED : 0));
}

/* Does the host wait in it until the device has done its work? */
static int is_wait(const sonde_cuda_seen *seen)
{
    return kinds[seen->call] == SONDE_CUDA_SYNCHRONIZE || seen->direction == SONDE_CUDA_TO_HOST;
}

/* Have the short waits so far told by this one. */
static void write_waits(const sonde_cuda_seen *last, cuda_sum *sum)
{
    uint64_t calls = sonde_swap_relaxed(&sum->calls, 0);
    int64_t dur_ns = sonde_swap_relaxed(&sum->dur_ns, 0), bytes = sonde_swap_relaxed(&sum->bytes, 0);
    if (calls > 0 && cuda.ring_map != NULL)
        write_row(last, (cuda_sum){calls, dur_ns, last->bytes < 0 ? -1 : bytes});
}

static void add(const sonde_cuda_seen *seen)
{
    cuda_sum *sum = &cuda.sums[seen->call][seen->direction + 1][seen->is_pinned + 1];
    uint64_t before = sonde_add_relaxed(&sum->calls, 1u);
    sonde_add_relaxed(&sum->dur_ns, seen->dur_ns);
    if (seen->bytes > 0)
        sonde_add_relaxed(&sum->bytes, seen->bytes);
    if (before + 1 < WAITS || !is_wait(seen) || sonde_add_relaxed(&cuda.rows, 1u) >= MOST_ROWS)
        return;
    pthread_mutex_lock(&cuda.lock);
    write_waits(seen, sum);
    pthread_mutex_unlock(&cuda.lock);
}

int sonde_cuda_is_on(void)
{
    /* Acquire: whoever sees that it is on sees what was set before. */
    return sonde_load_acquire(&cuda.is_on) && sonde_load_relaxed(cuda.allowed);
}

void sonde_cuda_note(const sonde_cuda_seen *seen)
{
    if (seen->dur_ns < LONG_NS || sonde_add_relaxed(&cuda.rows, 1u) >= MOST_ROWS) {
        add(seen);
    } else {
        pthread_mutex_lock(&cuda.lock);
        if (cuda.ring_map != NULL)
            write_row(seen, (cuda_sum){1, seen->dur_ns, seen->bytes});
        pthread_mutex_unlock(&cuda.lock);
    }
    flush_if_due(seen->end);
}

void sonde_cuda_count(enum sonde_cuda_call call)
{
    enum { LOOK_EVERY = 1024 };
    if (sonde_add_relaxed(&cuda.sums[call][0][0].calls, 1u) % LOOK_EVERY == LOOK_EVERY - 1)
        flush_if_due(sonde_instant_now());
}

/* ---- on and off -------------------------------------------------------------------------------- */

/* Have rows go nowhere from now on. */
static void release(void)
{
    pthread_mutex_lock(&cuda.lock);
    PyObject *held[] = {cuda.ring_map, cuda.text, cuda.page_map};
    cuda.ring_map = cuda.text = NULL;
    pthread_mutex_unlock(&cuda.lock);
    for (size_t i = 0; i < 2; i++)
        Py_XDECREF(held[i]);
    /* A thread may be about to look at the page; it is given back when another takes its place. */
}

static void put_texts(void)
{
    for (int i = 0; i < SONDE_CUDA_CALLS_N; i++)
        cuda.call_texts[i] = put(call_names[i] + strspn(call_names[i], "_"));
    for (int i = 0; i < SONDE_CUDA_KINDS; i++)
        cuda.kind_texts[i] = put(kind_names[i]);
    for (int i = 0; i < SONDE_CUDA_DIRECTIONS; i++)
        cuda.direction_texts[i] = put(direction_names[i]);
}

int sonde_cuda_rows_start(PyObject *writer, PyObject *text, PyObject *page, const char *folder, void *runtime)
{
    sonde_ring_handle ring;
    const sonde_control *control = sonde_map_memory(page, 0);
    char *copy = strdup(folder);
    PyObject *map = control == NULL || copy == NULL || sonde_writer_open(writer) < 0
                        ? NULL
                        : sonde_writer_ring(writer, KINDS, &ring);
    if (map == NULL) {
        free(copy);
        return PyErr_Occurred() ? -1 : (PyErr_NoMemory(), -1);
    }
    release();
    pthread_mutex_lock(&cuda.lock);
    PyObject *old_page = cuda.page_map;
    free(cuda.folder);
    memset(cuda.sums, 0, sizeof cuda.sums);
    cuda.ring = ring;
    cuda.texts = sonde_text_table(text);
    cuda.folder = copy;
    cuda.get_device = (int (*)(int *))dlsym(runtime, "cudaGetDevice");
    cuda.text = Py_NewRef(text);
    cuda.page_map = Py_NewRef(page);
    cuda.allowed = &control->on;
    cuda.flushed_ns = sonde_clock_ns();
    begin_period();
    cuda.rows = 0;
    put_texts();
    cuda.ring_map = map;
    pthread_mutex_unlock(&cuda.lock);
    Py_XDECREF(old_page);
    /* Release: see sonde_cuda_is_on. */
    sonde_store_release(&cuda.is_on, 1u);
    return 0;
}

void sonde_cuda_rows_stop(void)
{
    sonde_store_release(&cuda.is_on, 0u);
    sonde_cuda_rows_flush();
    release();
}

/* The ring is the parent's, and a thread of the parent may have held the lock. */
static void forget_in_child(void)
{
    SONDE_RESET(cuda.lock, PTHREAD_MUTEX_INITIALIZER);
    SONDE_RESET(cuda.is_on, 0);
    SONDE_RESET(cuda.ring_map, NULL); /* not given back: the Python of this child may not be ready for that */
}

SONDE_IN_CHILD(forget_in_child)
