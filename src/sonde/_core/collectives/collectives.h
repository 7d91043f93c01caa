/* Collectives of torch.distributed, seen from C: what the files of this folder share.
 *
 * c10d offers two views. Torch's observers see a work from when a backend takes it up until it is
 * over (observed.c). Its flight recorder keeps the last 2000 works with their group, number and
 * sizes (flight_recorder.c). A thread of ours puts the two together and writes the rows (rows.c);
 * it never holds the GIL, and nothing that issues or does a collective ever waits for it.
 */
#ifndef SONDE_COLLECTIVES_H
#define SONDE_COLLECTIVES_H

#include "binding/binding.h"

#include <pthread.h>

#define SONDE_OBSERVED_MAX 4096u /* works that have no row yet */
#define SONDE_ENTRIES_MAX 4096u /* the same for entries of the flight recorder */
#define SONDE_TITLE 56

/* ---- types of numbers (dtypes.c) ------------------------------------------------------ */

/* Types have the numbers that torch gives them. -1: there is none of that name. */
int sonde_dtype_find(const char *name, size_t bytes); /* by its name in C++: BFloat16 */
const char *sonde_dtype_name(int dtype);              /* its name in Python: bfloat16; or NULL */
uint32_t sonde_dtype_bytes(int dtype);                /* of one number; 0: not known */

/* ---- what an observer sees ---------------------------------------------------------- */

typedef struct {
    const void *function; /* torch's own object, by which the end of a work finds its beginning */
    uint64_t serial;      /* from 1, in the order of beginnings */
    int64_t begin_ns;
    int64_t end_ns; /* 0: in progress */
    int64_t tid;    /* the thread that took it up */
    uint64_t bytes, numel; /* of what it was given */
    int16_t dtype;         /* -1: none, or not known */
    uint8_t is_sized;      /* bytes and numel are known */
    uint8_t was_running;   /* a row already says that it is running */
    uint8_t is_taken;      /* an entry of the flight recorder is about it */
    char title[SONDE_TITLE]; /* gloo:all_reduce */
} sonde_observed_work;

/* Observe works from now on. `library` is libtorch_cpu. Returns 0, or -ENOENT if it lacks
 * something. `first` is called, by any thread, for a work that begins while none is waiting for
 * its row. */
int sonde_observed_start(void *library, const uint32_t *on, void (*first)(void));
void sonde_observed_stop(void);

/* Find by trial where a range keeps its inputs: between these two calls, this thread has torch do
 * one operation on this tensor. */
void sonde_observed_begin(uintptr_t tensor);
void sonde_observed_end(void);
int sonde_observed_is_sized(void); /* was it found? */

/* Copy the works that have no row yet, by serial. Returns how many. `to` holds
 * SONDE_OBSERVED_MAX. */
uint32_t sonde_observed_copy(sonde_observed_work *to);
void sonde_observed_update(const sonde_observed_work *work, int is_done); /* keep its flags, or forget it */
uint64_t sonde_observed_lost(void); /* works that found no room, so far */

/* ---- what the flight recorder keeps ---------------------------------------------------- */

enum { SONDE_RECORDER_CPU, SONDE_RECORDER_NCCL, SONDE_RECORDERS };

typedef struct {
    uint64_t id; /* the recorder's own */
    int64_t created_wall_ns;
    uint64_t seq;
    uint64_t given_bytes, given_numel, got_bytes;
    double device_s; /* below 0: not known */
    uint64_t thread; /* pthread_t of the thread that issued it; 0: not known */
    uint32_t group, group_desc; /* text ids */
    int16_t dtype;
    uint8_t recorder;
    uint8_t is_over; /* completed, or given up */
    uint8_t is_completed;
    uint8_t was_running;
    uint64_t serial; /* of the observed work; 0: none */
    char title[SONDE_TITLE];
} sonde_recorder_entry;

/* Find a recorder in `library`. Returns 0 or -ENOENT. */
int sonde_flight_recorder_open(int recorder, void *library);
int sonde_flight_recorder_has(int recorder);

/* Ask a recorder, and call `each` for every entry; 0, or -errno if it could not be read. The texts go to
 * `texts`. Needs no GIL; takes some 10 us an entry. */
int sonde_flight_recorder_ask(int recorder, const sonde_intern_handle *texts, void (*each)(const sonde_recorder_entry *));

/* Have this thread use the CUDA context that the program has made. Returns 0 as long as there is none: then
 * NCCL's recorder has nothing to say (device_context.c). */
int sonde_device_context_enter(void);

/* ---- what both are put together with ------------------------------------------------- */

enum { SONDE_STEPS = 1024, SONDE_THREADS = 64, SONDE_GROUPS = 1024, SONDE_WORKERS = 1024 };

typedef struct {
    PyObject *ring_map, *text, *page_map, *ask; /* ask: makes Python call collective_group() */
    sonde_ring_handle ring;
    const sonde_intern_handle *texts;
    const uint32_t *on; /* of the control page */
    pthread_t thread;
    int is_open;     /* guarded by the GIL: between start and stop */
    int is_running;  /* guarded by the lock: a thread was made and not joined */
    int is_observed; /* works are observed */
    uint32_t leave, bell; /* atomics */
    uint32_t is_asked; /* atomic: Python was asked for the groups */

    pthread_mutex_t lock; /* guards what the program reports: steps, threads, groups */
    struct { int64_t end_ns, number; } steps[SONDE_STEPS];
    uint64_t steps_n;
    int64_t first_step;
    struct { uint64_t thread; int64_t tid; } threads[SONDE_THREADS];
    uint32_t threads_n;
    struct { uint32_t name, size, ranks; } groups[SONDE_GROUPS];
    uint32_t groups_n;

    /* Only the thread uses these. */
    int64_t started_ns, wall_ns; /* wall_ns: how far the wall clock is ahead of ours */
    int64_t asked_ns, cost_ns;   /* when the recorders were last asked, and how long that took */
    int64_t asking_ns;
    uint64_t asked_serial;
    int is_unreadable;                 /* the answer of a recorder was not understood */
    uint64_t next_id[SONDE_RECORDERS], top_id[SONDE_RECORDERS];
    sonde_observed_work *works;
    uint32_t works_n;
    sonde_recorder_entry *entries;
    uint32_t entries_n;
    struct { int64_t tid; uint32_t group; } workers[SONDE_WORKERS];
    uint32_t workers_n;
    uint32_t ended, running, timeout; /* text ids */
} sonde_collectives_state;

extern sonde_collectives_state sonde_collectives; /* one for the process: rows.c */

#define SONDE_COLLECTIVE_KINDS "qqqtttttIQQQttqq" /* the columns of a row: rows.c */

/* Write the rows that are due; all of them if it is the last time. Returns 1 if something still
 * waits for its row. Only the thread calls this, without the GIL. */
int sonde_collectives_write(int is_last);

extern PyMethodDef sonde_collectives_methods[];

#endif
