/* Rows of collectives: what was seen of a work and what the flight recorder tells of it. */
#include "collective.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 1024, THREADS = 64, GROUPS = 1024, WORKERS = 1024, RELAXED = 2 };
#define TURN_NS 500000000       /* between two looks, while works wait for their rows */
#define IDLE_NS 3600000000000
#define RUNNING_NS 5000000000   /* a work that takes longer gets a row before it ends */
#define GROUP_NS 3000000000     /* a row waits so long for Python to tell its group */
#define NEAR_NS 1000000         /* two clocks, read one after the other */
/* Asking the recorder costs us at most one part in so many of one core's time, and five
 * times as much if it would forget something otherwise. */
enum { SHARE = 100, SHARE_IN_NEED = 20, NEED = 1500 };

typedef struct {
    int64_t t_ns;
    double duration, device_duration;
    uint32_t op, backend, group, group_desc, group_ranks, group_size;
    uint64_t seq, bytes, output_bytes;
    uint32_t dtype, state;
    int64_t thread, step;
} row;

#define KINDS "qddtttttIQQQttqq"
_Static_assert(sizeof(row) == 96, "as the layout of KINDS");

/* Bits of the columns that may be missing, in their order. */
enum {
    NO_DURATION = 1, NO_DEVICE = 2, NO_GROUP = 4, NO_DESC = 8, NO_RANKS = 16, NO_SIZE = 32,
    NO_SEQ = 64, NO_BYTES = 128, NO_OUTPUT = 256, NO_DTYPE = 512, NO_THREAD = 1024,
};

static struct {
    PyObject *ring_map, *text, *page_map, *ask; /* ask: have Python tell the groups */
    sonde_ring *ring;
    sonde_intern *texts;
    const uint32_t *on; /* of the control page */
    pthread_t thread;
    int is_running;  /* the GIL's: a thread was made and not joined */
    int is_observed; /* works are seen */
    uint32_t leave, bell; /* atomics */
    uint32_t is_asked; /* atomic: Python was asked for the groups */
    int (*set_mode)(int *);

    pthread_mutex_t lock; /* what the program tells: steps, threads, groups */
    struct { int64_t end_ns, number; } steps[STEPS];
    uint64_t steps_n;
    int64_t first_step;
    struct { uint64_t thread; int64_t tid; } threads[THREADS];
    uint32_t threads_n;
    struct { uint32_t name, size, ranks; } groups[GROUPS];
    uint32_t groups_n;

    /* The thread's own. */
    int64_t started_ns, wall_ns; /* wall_ns: what the wall clock is ahead of ours */
    int64_t asked_ns, cost_ns;   /* the recorders: when last, and how long it took */
    int64_t asking_ns;
    uint64_t asked_serial;
    int is_deaf;                 /* the answer was not understood */
    uint64_t next_id[SONDE_TOLD_RECORDERS], top_id[SONDE_TOLD_RECORDERS];
    sonde_seen *seen;
    uint32_t seen_n;
    sonde_told *told;
    uint32_t told_n;
    struct { int64_t tid; uint32_t group; } workers[WORKERS];
    uint32_t workers_n;
    uint32_t ended, running, timeout; /* text ids */
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int64_t wall_ahead_ns(void)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    return (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - sonde_clock_ns();
}

static int64_t created_ns(const sonde_told *told) { return told->created_wall_ns - all.wall_ns; }

/* Does the host do the work itself? Then its end is the work's, not only of handing it on. */
static int is_of_host(const char *title)
{
    return strncmp(title, "gloo:", 5) == 0 || strncmp(title, "mpi:", 4) == 0;
}

/* Is it taken up by the thread that asks for it, not by one of the backend's? */
static int is_begun_at_once(const char *title)
{
    return !is_of_host(title) || strstr(title, ":send") != NULL || strstr(title, ":recv") != NULL;
}

/* ---- which entry is about which work? ----------------------------------------------------------- */

static uint32_t find_group_of(int64_t tid)
{
    for (uint32_t i = 0; i < all.workers_n; i++)
        if (all.workers[i].tid == tid)
            return all.workers[i].group;
    return 0;
}

static int fits(const sonde_told *told, const sonde_seen *work)
{
    int64_t since_ns = work->begin_ns - created_ns(told);
    if (work->is_taken || strcmp(told->title, work->title) != 0 || since_ns < -NEAR_NS)
        return 0;
    if (work->is_sized && told->given_numel != work->numel)
        return 0;
    if (is_of_host(work->title)) {
        /* A thread of gloo's works for one group all its life. */
        uint32_t group = find_group_of(work->tid);
        return group == 0 || group == told->group;
    }
    return since_ns < NEAR_NS; /* it is entered in the call that makes it */
}

/* Might the work be another group's? Then nothing is learned from it. */
static int is_sure(const sonde_told *told, const sonde_seen *work)
{
    for (uint32_t i = 0; i < all.told_n; i++)
        if (all.told[i].group != told->group && all.told[i].serial == 0 && fits(&all.told[i], work))
            return 0;
    return 1;
}

static void match(sonde_told *told)
{
    for (uint32_t i = 0; i < all.seen_n; i++) {
        sonde_seen *work = &all.seen[i];
        if (!fits(told, work))
            continue;
        if (is_of_host(work->title) && all.workers_n < WORKERS &&
            find_group_of(work->tid) == 0 && is_sure(told, work)) {
            all.workers[all.workers_n].tid = work->tid;
            all.workers[all.workers_n++].group = told->group;
        }
        told->serial = work->serial;
        work->is_taken = 1;
        sonde_seen_mark(work, 0);
        return;
    }
}

/* ---- the recorder's entries ------------------------------------------------------------------------ */

static void take(const sonde_told *entry)
{
    int recorder = entry->recorder;
    if (entry->id >= all.top_id[recorder])
        all.top_id[recorder] = entry->id + 1;
    if (entry->id >= all.next_id[recorder]) {
        /* What was asked for before us, or while we were told to rest, is nobody's business. */
        if (created_ns(entry) >= all.started_ns && sonde_load_relaxed(all.on) &&
            all.told_n < SONDE_TOLD_MAX)
            all.told[all.told_n++] = *entry;
        return;
    }
    for (uint32_t i = 0; i < all.told_n; i++) {
        sonde_told *known = &all.told[i];
        if (known->recorder == recorder && known->id == entry->id) {
            known->is_over = entry->is_over;
            known->is_completed = entry->is_completed;
            known->device_s = entry->device_s;
            return;
        }
    }
}

static void take_cpu(const sonde_told *entry)
{
    sonde_told ours = *entry;
    ours.recorder = SONDE_TOLD_CPU;
    take(&ours);
}

static void take_nccl(const sonde_told *entry)
{
    sonde_told ours = *entry;
    ours.recorder = SONDE_TOLD_NCCL;
    take(&ours);
}

static void ask_one(int recorder, void (*each)(const sonde_told *))
{
    if (!sonde_told_has(recorder))
        return;
    all.top_id[recorder] = 0;
    if (sonde_told_ask(recorder, all.texts, each) < 0)
        sonde_store_relaxed(&all.is_deaf, 1);
    all.next_id[recorder] = all.top_id[recorder]; /* smaller than before: it was emptied */
}

static int is_due(int64_t now_ns)
{
    uint64_t newest = all.seen_n == 0 ? 0 : all.seen[all.seen_n - 1].serial;
    if (sonde_load_acquire(&all.leave))
        return 1;
    int share = newest - all.asked_serial >= NEED ? SHARE_IN_NEED : SHARE;
    return now_ns - all.asked_ns >= all.cost_ns * share;
}

static void ask_recorders(int64_t now_ns)
{
    all.wall_ns = wall_ahead_ns();
    all.asking_ns = now_ns;
    all.asked_serial = all.seen_n == 0 ? all.asked_serial : all.seen[all.seen_n - 1].serial;
    ask_one(SONDE_TOLD_CPU, take_cpu);
    ask_one(SONDE_TOLD_NCCL, take_nccl);
    all.asked_ns = sonde_clock_ns();
    all.cost_ns = all.asked_ns - now_ns;
    for (uint32_t i = 0; i < all.told_n; i++)
        if (all.told[i].serial == 0)
            match(&all.told[i]);
}

/* ---- rows ----------------------------------------------------------------------------------------------- */

static uint32_t put_text(const char *text, size_t bytes)
{
    return bytes == 0 ? 0 : sonde_intern_put(all.texts, text, (uint32_t)bytes);
}

static int64_t find_step(int64_t t_ns)
{
    uint64_t last = all.steps_n;
    uint64_t oldest = last > STEPS ? last - STEPS : 0;
    while (last > oldest && all.steps[(last - 1) % STEPS].end_ns > t_ns)
        last--;
    return last > oldest ? all.steps[(last - 1) % STEPS].number + 1 : all.first_step;
}

static void fill_place(row *to, uint32_t *nulls, const sonde_told *told, const sonde_seen *work)
{
    pthread_mutex_lock(&all.lock);
    to->step = find_step(to->t_ns);
    for (uint32_t i = 0; told != NULL && i < all.threads_n; i++)
        if (all.threads[i].thread == told->thread) {
            to->thread = all.threads[i].tid;
            *nulls &= ~(uint32_t)NO_THREAD;
        }
    for (uint32_t i = 0; told != NULL && i < all.groups_n; i++)
        if (all.groups[i].name == told->group) {
            to->group_size = all.groups[i].size;
            to->group_ranks = all.groups[i].ranks;
            *nulls &= ~(uint32_t)(NO_SIZE | NO_RANKS);
        }
    pthread_mutex_unlock(&all.lock);
    if ((*nulls & NO_THREAD) && work != NULL && is_begun_at_once(work->title)) {
        to->thread = work->tid;
        *nulls &= ~(uint32_t)NO_THREAD;
    }
}

static void fill_told(row *to, uint32_t *nulls, const sonde_told *told)
{
    to->group = told->group;
    to->group_desc = told->group_desc;
    to->seq = told->seq;
    to->bytes = told->given_bytes;
    to->output_bytes = told->got_bytes;
    *nulls &= ~(uint32_t)(NO_SEQ | NO_BYTES | NO_OUTPUT);
    *nulls &= ~(uint32_t)((told->group ? NO_GROUP : 0) | (told->group_desc ? NO_DESC : 0));
    if (told->device_s >= 0) {
        to->device_duration = told->device_s;
        *nulls &= ~(uint32_t)NO_DEVICE;
    }
}

static void fill_seen(row *to, uint32_t *nulls, const sonde_seen *work, int is_told)
{
    if (work->end_ns != 0) {
        to->duration = (double)(work->end_ns - to->t_ns) / 1e9;
        *nulls &= ~(uint32_t)NO_DURATION;
    }
    if (!is_told && work->is_sized) {
        to->bytes = work->bytes;
        *nulls &= ~(uint32_t)NO_BYTES;
    }
}

/* One row; either of the two may be missing. */
static void write_row(const sonde_told *told, const sonde_seen *work, uint32_t state)
{
    row to = {.state = state};
    uint32_t nulls = 2 * NO_THREAD - 1;
    const char *title = told != NULL ? told->title : work->title;
    const char *colon = strchr(title, ':');
    int dtype = told != NULL ? told->dtype : work->dtype;
    const char *name = sonde_dtype_name(dtype);
    to.op = put_text(colon == NULL ? title : colon + 1, strlen(colon == NULL ? title : colon + 1));
    to.backend = put_text(title, colon == NULL ? 0 : (size_t)(colon - title));
    to.t_ns = work == NULL || (told != NULL && created_ns(told) < work->begin_ns)
                  ? created_ns(told) : work->begin_ns;
    if (name != NULL) {
        to.dtype = put_text(name, strlen(name));
        nulls &= ~(uint32_t)NO_DTYPE;
    }
    if (told != NULL)
        fill_told(&to, &nulls, told);
    if (work != NULL)
        fill_seen(&to, &nulls, work, told != NULL);
    fill_place(&to, &nulls, told, work);
    uint64_t words[sizeof to / 8];
    memcpy(words, &to, sizeof to);
    (void)sonde_ring_append(all.ring, words, nulls); /* a drop is counted there */
}

static sonde_seen *find_seen(uint64_t serial)
{
    for (uint32_t i = 0; serial != 0 && i < all.seen_n; i++)
        if (all.seen[i].serial == serial)
            return &all.seen[i];
    return NULL;
}

/* ---- a turn ----------------------------------------------------------------------------------------------- */

static int knows_group(uint32_t name)
{
    int found = name == 0;
    pthread_mutex_lock(&all.lock);
    for (uint32_t i = 0; !found && i < all.groups_n; i++)
        found = all.groups[i].name == name;
    pthread_mutex_unlock(&all.lock);
    return found;
}

static int call_ask(void *Py_UNUSED(none))
{
    PyObject *ask = Py_XNewRef(all.ask);
    sonde_store_release(&all.is_asked, 0);
    PyObject *result = ask == NULL ? NULL : PyObject_CallNoArgs(ask);
    int is_well = result != NULL || ask == NULL;
    Py_XDECREF(result);
    Py_XDECREF(ask);
    return is_well ? 0 : -1; /* of a signal's handler: see Host.guard */
}

/* Have Python tell the groups, at the main thread's next safe point. */
static void ask_python(void)
{
    if (!sonde_load_acquire(&all.is_asked)) {
        sonde_store_release(&all.is_asked, 1);
        if (Py_AddPendingCall(call_ask, NULL) < 0)
            sonde_store_release(&all.is_asked, 0); /* the queue is full: next time */
    }
}

/* Is there all that there will be? */
static int is_done(const sonde_told *told, const sonde_seen *work)
{
    if (work != NULL && is_of_host(work->title))
        return work->end_ns != 0;
    return told->is_over && (work == NULL || work->end_ns != 0);
}

/* Is it about something that is no work of its own (one of several that NCCL does together), or
 * that nobody wanted to see (we were told to rest)? */
static int is_nothing(const sonde_told *told, const sonde_seen *work)
{
    return all.is_observed && work == NULL && (told->is_over || !is_of_host(told->title));
}

/* 1: nothing more is to be written of it. */
static int settle_told(sonde_told *told, int64_t now_ns, int is_last)
{
    sonde_seen *work = find_seen(told->serial);
    int64_t age_ns = now_ns - created_ns(told);
    if (is_nothing(told, work))
        return 1;
    if (!is_last && age_ns < GROUP_NS && !knows_group(told->group)) {
        ask_python();
        return 0;
    }
    if (is_done(told, work)) {
        int was_given_up = !is_of_host(told->title) && !told->is_completed;
        write_row(told, work, was_given_up ? all.timeout : all.ended);
        if (work != NULL)
            sonde_seen_mark(work, 1);
        return 1;
    }
    if ((age_ns >= RUNNING_NS || is_last) && !told->was_running) {
        write_row(told, work, all.running);
        told->was_running = 1;
    }
    return 0;
}

/* A work that no entry is about: the recorder keeps none of these, or forgot it. */
static void settle_seen(sonde_seen *work, int64_t now_ns, int is_last)
{
    int will_be_told = (sonde_told_has(SONDE_TOLD_CPU) || sonde_told_has(SONDE_TOLD_NCCL)) &&
                       !all.is_deaf && all.asking_ns < work->begin_ns + 10 * NEAR_NS;
    if (work->is_taken || (will_be_told && !is_last))
        return;
    if (work->end_ns != 0) {
        write_row(NULL, work, all.ended);
        sonde_seen_mark(work, 1);
    } else if ((now_ns - work->begin_ns >= RUNNING_NS || is_last) && !work->was_running) {
        write_row(NULL, work, all.running);
        work->was_running = 1;
        sonde_seen_mark(work, 0);
    }
}

/* 1: something still waits for its row. */
static int turn(int is_last)
{
    int64_t now_ns = sonde_clock_ns();
    all.seen_n = sonde_seen_copy(all.seen);
    if (is_due(now_ns))
        ask_recorders(now_ns);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < all.told_n; i++)
        if (!settle_told(&all.told[i], now_ns, is_last))
            all.told[kept++] = all.told[i];
    all.told_n = kept;
    for (uint32_t i = 0; i < all.seen_n; i++)
        settle_seen(&all.seen[i], now_ns, is_last);
    return all.seen_n != 0 || all.told_n != 0;
}

static void *work(void *Py_UNUSED(arg))
{
    int mode = RELAXED;
    /* While the program records a CUDA graph, a question about an event, asked by a thread
     * that has not said this, would spoil it. */
    if (all.set_mode != NULL)
        (void)all.set_mode(&mode);
    int is_waiting = 0;
    while (!sonde_load_acquire(&all.leave)) {
        uint32_t bell = sonde_load_acquire(&all.bell);
        /* Whatever comes from here on rings. */
        is_waiting = turn(0);
        sonde_wait(&all.bell, bell, is_waiting ? TURN_NS : IDLE_NS);
    }
    (void)turn(1);
    return NULL;
}

/* The first work after a while: wake the thread. */
static void ring(void)
{
    __atomic_fetch_add(&all.bell, 1, __ATOMIC_RELEASE);
    sonde_wake(&all.bell);
}

/* ---- on and off --------------------------------------------------------------------------------------------- */

static void learn_thread(void)
{
    uint64_t self = (uint64_t)pthread_self();
    uint32_t at = 0;
    while (at < all.threads_n && all.threads[at].thread != self)
        at++;
    if (at == all.threads_n && at < THREADS)
        all.threads_n++;
    if (at < THREADS) {
        all.threads[at].thread = self;
        all.threads[at].tid = syscall(SYS_gettid);
    }
}

static int make_room(void)
{
    if (all.seen == NULL)
        all.seen = calloc(SONDE_SEEN_MAX, sizeof *all.seen);
    if (all.told == NULL)
        all.told = calloc(SONDE_TOLD_MAX, sizeof *all.told);
    return all.seen == NULL || all.told == NULL ? -ENOMEM : 0;
}

static void reset(int64_t step)
{
    all.steps_n = all.threads_n = all.groups_n = all.told_n = all.workers_n = all.seen_n = 0;
    all.first_step = step;
    all.started_ns = sonde_clock_ns();
    all.asked_ns = all.cost_ns = all.asking_ns = 0;
    all.asked_serial = 0;
    all.is_deaf = 0;
    all.leave = all.is_asked = 0;
    memset(all.next_id, 0, sizeof all.next_id);
    all.ended = put_text("ended", 5);
    all.running = put_text("running", 7);
    all.timeout = put_text("timeout", 7);
    learn_thread();
}

static void release(void)
{
    Py_CLEAR(all.ring_map);
    Py_CLEAR(all.text);
    Py_CLEAR(all.page_map);
    Py_CLEAR(all.ask);
    all.ring = NULL;
}

static void open_recorders(void *cpu, const char *cuda_path)
{
    void *cuda = cuda_path == NULL ? NULL : dlopen(cuda_path, RTLD_NOW | RTLD_NOLOAD);
    all.set_mode = cuda == NULL ? NULL
                                : (int (*)(int *))dlsym(cuda, "cudaThreadExchangeStreamCaptureMode");
    (void)sonde_told_open(SONDE_TOLD_CPU, cpu);
    (void)sonde_told_open(SONDE_TOLD_NCCL, all.set_mode == NULL ? NULL : cuda);
}

/* collective_start(writer, text, page, libtorch_cpu, libtorch_cuda or None, ask, step, observe) */
static PyObject *collective_start(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *writer, *text, *page, *ask;
    const char *cpu_path, *cuda_path;
    long long step;
    int observe;
    if (!PyArg_ParseTuple(args, "O!O!O!szOLp", &sonde_WriterType, &writer, &sonde_TextType, &text,
                          &sonde_MapType, &page, &cpu_path, &cuda_path, &ask, &step, &observe))
        return NULL;
    if (all.is_running)
        return PyErr_Format(PyExc_RuntimeError, "collectives are watched already");
    sonde_control *control = sonde_map_memory(page, 0);
    void *cpu = control == NULL ? NULL : dlopen(cpu_path, RTLD_NOW | RTLD_NOLOAD);
    if (control != NULL && cpu == NULL)
        return PyErr_Format(PyExc_OSError, "%s is not loaded", cpu_path);
    all.ring = cpu == NULL ? NULL : sonde_writer_ring(writer, KINDS, &all.ring_map);
    if (all.ring == NULL)
        return NULL;
    all.text = Py_NewRef(text);
    all.page_map = Py_NewRef(page);
    all.ask = Py_NewRef(ask);
    all.texts = sonde_text_table(text);
    all.on = &control->on;
    reset(step);
    open_recorders(cpu, cuda_path);
    all.is_observed = observe;
    int status = make_room();
    if (status == 0)
        status = sonde_thread_start(work, NULL, &all.thread);
    all.is_running = status == 0;
    if (status == 0 && observe)
        status = sonde_seen_start(cpu, all.on, ring);
    if (status == 0)
        Py_RETURN_NONE;
    if (!all.is_running)
        release();
    return PyErr_Format(PyExc_OSError, "torch's observers are not where they should be");
}

static PyObject *collective_stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    sonde_seen_stop();
    if (all.is_running) {
        all.is_running = 0;
        sonde_store_release(&all.leave, 1);
        ring();
        Py_BEGIN_ALLOW_THREADS
        pthread_join(all.thread, NULL);
        Py_END_ALLOW_THREADS
    }
    release();
    Py_RETURN_NONE;
}

void sonde_collective_off(void)
{
    /* The thread is the parent's, and so are the mapped files. */
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    all.lock = fresh;
    all.is_running = 0;
    sonde_seen_off();
}

/* ---- what the program tells ------------------------------------------------------------------------------------- */

/* collective_look(address of a tensor, call that has torch do something with it) */
static PyObject *collective_look(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long tensor;
    PyObject *call;
    if (!PyArg_ParseTuple(args, "KO", &tensor, &call))
        return NULL;
    sonde_seen_look((uintptr_t)tensor);
    PyObject *result = PyObject_CallNoArgs(call);
    sonde_seen_looked();
    return result;
}

static PyObject *collective_step(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long number, end_ns;
    if (!PyArg_ParseTuple(args, "LL", &number, &end_ns))
        return NULL;
    pthread_mutex_lock(&all.lock);
    all.steps[all.steps_n % STEPS].number = number;
    all.steps[all.steps_n++ % STEPS].end_ns = end_ns;
    learn_thread();
    pthread_mutex_unlock(&all.lock);
    Py_RETURN_NONE;
}

static PyObject *collective_group(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *name, *ranks;
    unsigned int size;
    if (!PyArg_ParseTuple(args, "UIU", &name, &size, &ranks))
        return NULL;
    if (all.text == NULL)
        Py_RETURN_NONE;
    int64_t name_id = sonde_text_id(all.text, name), ranks_id = sonde_text_id(all.text, ranks);
    if (name_id < 0 || ranks_id < 0)
        return NULL;
    pthread_mutex_lock(&all.lock);
    uint32_t at = 0;
    while (at < all.groups_n && all.groups[at].name != (uint32_t)name_id)
        at++;
    if (at == all.groups_n && at < GROUPS)
        all.groups_n++;
    if (at < GROUPS) {
        all.groups[at].name = (uint32_t)name_id;
        all.groups[at].size = size;
        all.groups[at].ranks = (uint32_t)ranks_id;
    }
    pthread_mutex_unlock(&all.lock);
    Py_RETURN_NONE;
}

static PyObject *collective_state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    int is_recorded = sonde_told_has(SONDE_TOLD_CPU) || sonde_told_has(SONDE_TOLD_NCCL);
    return Py_BuildValue("{s:O,s:O,s:K,s:L}", "sized", sonde_seen_is_sized() ? Py_True : Py_False,
                         "recorded", is_recorded && !sonde_load_relaxed(&all.is_deaf) ? Py_True : Py_False,
                         "lost", (unsigned long long)sonde_seen_lost(), "cost_ns",
                         (long long)all.cost_ns);
}

PyMethodDef sonde_collective_methods[] = {
    {"collective_start", collective_start, METH_VARARGS,
     "collective_start(writer, text, page, libtorch_cpu, libtorch_cuda, ask, step, observe): have\n"
     "works of c10d written; `ask` is called to have groups told."},
    {"collective_stop", collective_stop, METH_NOARGS, "Write what is left, and watch no more."},
    {"collective_look", collective_look, METH_VARARGS,
     "collective_look(address, call): find where torch keeps the tensors that a range was given;\n"
     "`call` has torch do one operation on the tensor at that address."},
    {"collective_step", collective_step, METH_VARARGS,
     "collective_step(number, end_ns): this step ended, in this thread."},
    {"collective_group", collective_group, METH_VARARGS,
     "collective_group(name, size, ranks): a process group."},
    {"collective_state", collective_state, METH_NOARGS, "What is found of torch, and lost."},
    {NULL, NULL, 0, NULL},
};
