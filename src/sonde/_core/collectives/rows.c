/* Rows of collectives: what was observed of a work, and its entry in the flight recorder. */
#include "collectives/collectives.h"

#include <string.h>
#include <time.h>

#define RUNNING_NS 5000000000   /* a work that takes longer gets a row before it ends */
#define GROUP_NS 3000000000     /* how long a row waits for Python to name its group */
#define NEAR_NS 1000000         /* the most between two clocks that are read one after the other */
/* Asking the recorder takes at most this fraction of one core's time, and five times as much
 * if it would forget something otherwise. */
enum { SHARE = 100, SHARE_IN_NEED = 20, NEED = 1500 };

typedef struct {
    int64_t t_ns, dur_ns, device_dur_ns;
    uint32_t op, backend, group, group_desc, group_ranks, group_size;
    uint64_t seq, input_bytes, output_bytes;
    uint32_t dtype, state;
    int64_t thread, step;
} row;

_Static_assert(sizeof(row) == 96, "as SONDE_COLLECTIVE_KINDS says");

sonde_collectives_state sonde_collectives = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Bits of the columns that may be missing, in their order. */
enum {
    NO_DURATION = 1, NO_DEVICE = 2, NO_GROUP = 4, NO_DESC = 8, NO_RANKS = 16, NO_SIZE = 32,
    NO_SEQ = 64, NO_INPUT = 128, NO_OUTPUT = 256, NO_DTYPE = 512, NO_THREAD = 1024,
};

static int64_t wall_ahead_ns(void)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    return (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - sonde_clock_ns();
}

static int64_t created_ns(const sonde_recorder_entry *entry) { return entry->created_wall_ns - sonde_collectives.wall_ns; }

/* Does the host do the work itself? Then the end of the range is the end of the work, and not
 * only of handing it over. */
static int is_of_host(const char *title)
{
    return strncmp(title, "gloo:", 5) == 0 || strncmp(title, "mpi:", 4) == 0;
}

/* Is a work taken up by the thread that asks for it, and not by a thread of the backend? */
static int is_begun_at_once(const char *title)
{
    return !is_of_host(title) || strstr(title, ":send") != NULL || strstr(title, ":recv") != NULL;
}

/* ---- which entry is about which work? ----------------------------------------------------------- */

static uint32_t find_group_of(int64_t tid)
{
    for (uint32_t i = 0; i < sonde_collectives.workers_n; i++)
        if (sonde_collectives.workers[i].tid == tid)
            return sonde_collectives.workers[i].group;
    return 0;
}

static int fits(const sonde_recorder_entry *entry, const sonde_observed_work *work)
{
    int64_t since_ns = work->begin_ns - created_ns(entry);
    if (work->is_taken || strcmp(entry->title, work->title) != 0 || since_ns < -NEAR_NS)
        return 0;
    if (work->is_sized && entry->given_numel != work->numel)
        return 0;
    if (is_of_host(work->title)) {
        /* A thread of gloo works for one group all its life. */
        uint32_t group = find_group_of(work->tid);
        return group == 0 || group == entry->group;
    }
    return since_ns < NEAR_NS; /* the recorder enters it in the call that makes it */
}

/* Is it certain that the work does not belong to another group? Only then is its thread remembered. */
static int is_sure(const sonde_recorder_entry *entry, const sonde_observed_work *work)
{
    for (uint32_t i = 0; i < sonde_collectives.entries_n; i++)
        if (sonde_collectives.entries[i].group != entry->group && sonde_collectives.entries[i].serial == 0 && fits(&sonde_collectives.entries[i], work))
            return 0;
    return 1;
}

static void match(sonde_recorder_entry *entry)
{
    for (uint32_t i = 0; i < sonde_collectives.works_n; i++) {
        sonde_observed_work *work = &sonde_collectives.works[i];
        if (!fits(entry, work))
            continue;
        if (is_of_host(work->title) && sonde_collectives.workers_n < SONDE_WORKERS &&
            find_group_of(work->tid) == 0 && is_sure(entry, work)) {
            sonde_collectives.workers[sonde_collectives.workers_n].tid = work->tid;
            sonde_collectives.workers[sonde_collectives.workers_n++].group = entry->group;
        }
        entry->serial = work->serial;
        work->is_taken = 1;
        sonde_observed_update(work, 0);
        return;
    }
}

/* ---- the recorder's entries ------------------------------------------------------------------------ */

static void take(const sonde_recorder_entry *entry)
{
    int recorder = entry->recorder;
    if (entry->id >= sonde_collectives.top_id[recorder])
        sonde_collectives.top_id[recorder] = entry->id + 1;
    if (entry->id >= sonde_collectives.next_id[recorder]) {
        /* What was asked for before we started, or while we were paused, does not count. */
        if (created_ns(entry) >= sonde_collectives.started_ns && sonde_load_relaxed(sonde_collectives.on) &&
            sonde_collectives.entries_n < SONDE_ENTRIES_MAX)
            sonde_collectives.entries[sonde_collectives.entries_n++] = *entry;
        return;
    }
    for (uint32_t i = 0; i < sonde_collectives.entries_n; i++) {
        sonde_recorder_entry *known = &sonde_collectives.entries[i];
        if (known->recorder == recorder && known->id == entry->id) {
            known->is_over = entry->is_over;
            known->is_completed = entry->is_completed;
            known->device_s = entry->device_s;
            return;
        }
    }
}

static void take_cpu(const sonde_recorder_entry *entry)
{
    sonde_recorder_entry ours = *entry;
    ours.recorder = SONDE_RECORDER_CPU;
    take(&ours);
}

static void take_nccl(const sonde_recorder_entry *entry)
{
    sonde_recorder_entry ours = *entry;
    ours.recorder = SONDE_RECORDER_NCCL;
    take(&ours);
}

static void ask_one(int recorder, void (*each)(const sonde_recorder_entry *))
{
    if (!sonde_flight_recorder_has(recorder))
        return;
    sonde_collectives.top_id[recorder] = 0;
    if (sonde_flight_recorder_ask(recorder, sonde_collectives.texts, each) < 0)
        sonde_store_relaxed(&sonde_collectives.is_unreadable, 1);
    sonde_collectives.next_id[recorder] = sonde_collectives.top_id[recorder]; /* may shrink: it was emptied */
}

static int is_due(int64_t now_ns)
{
    uint64_t newest = sonde_collectives.works_n == 0 ? 0 : sonde_collectives.works[sonde_collectives.works_n - 1].serial;
    if (sonde_load_acquire(&sonde_collectives.leave))
        return 1;
    int share = newest - sonde_collectives.asked_serial >= NEED ? SHARE_IN_NEED : SHARE;
    return now_ns - sonde_collectives.asked_ns >= sonde_collectives.cost_ns * share;
}

static void ask_recorders(int64_t now_ns)
{
    sonde_collectives.wall_ns = wall_ahead_ns();
    sonde_collectives.asking_ns = now_ns;
    sonde_collectives.asked_serial = sonde_collectives.works_n == 0 ? sonde_collectives.asked_serial : sonde_collectives.works[sonde_collectives.works_n - 1].serial;
    ask_one(SONDE_RECORDER_CPU, take_cpu);
    if (sonde_device_context_enter())
        ask_one(SONDE_RECORDER_NCCL, take_nccl);
    sonde_collectives.asked_ns = sonde_clock_ns();
    sonde_collectives.cost_ns = sonde_collectives.asked_ns - now_ns;
    for (uint32_t i = 0; i < sonde_collectives.entries_n; i++)
        if (sonde_collectives.entries[i].serial == 0)
            match(&sonde_collectives.entries[i]);
}

/* ---- rows ----------------------------------------------------------------------------------------------- */

static uint32_t put_text(const char *text, size_t bytes)
{
    return bytes == 0 ? 0 : sonde_intern_put(sonde_collectives.texts, text, (uint32_t)bytes);
}

static int64_t find_step(int64_t t_ns)
{
    uint64_t last = sonde_collectives.steps_n;
    uint64_t oldest = last > SONDE_STEPS ? last - SONDE_STEPS : 0;
    while (last > oldest && sonde_collectives.steps[(last - 1) % SONDE_STEPS].end_ns > t_ns)
        last--;
    return last > oldest ? sonde_collectives.steps[(last - 1) % SONDE_STEPS].number + 1 : sonde_collectives.first_step;
}

static void fill_place(row *to, uint32_t *nulls, const sonde_recorder_entry *entry, const sonde_observed_work *work)
{
    pthread_mutex_lock(&sonde_collectives.lock);
    to->step = find_step(to->t_ns);
    for (uint32_t i = 0; entry != NULL && i < sonde_collectives.threads_n; i++)
        if (sonde_collectives.threads[i].thread == entry->thread) {
            to->thread = sonde_collectives.threads[i].tid;
            *nulls &= ~(uint32_t)NO_THREAD;
        }
    for (uint32_t i = 0; entry != NULL && i < sonde_collectives.groups_n; i++)
        if (sonde_collectives.groups[i].name == entry->group) {
            to->group_size = sonde_collectives.groups[i].size;
            to->group_ranks = sonde_collectives.groups[i].ranks;
            *nulls &= ~(uint32_t)(NO_SIZE | NO_RANKS);
        }
    pthread_mutex_unlock(&sonde_collectives.lock);
    if ((*nulls & NO_THREAD) && work != NULL && is_begun_at_once(work->title)) {
        to->thread = work->tid;
        *nulls &= ~(uint32_t)NO_THREAD;
    }
}

static void fill_entry(row *to, uint32_t *nulls, const sonde_recorder_entry *entry)
{
    to->group = entry->group;
    to->group_desc = entry->group_desc;
    to->seq = entry->seq;
    to->input_bytes = entry->given_bytes;
    to->output_bytes = entry->got_bytes;
    *nulls &= ~(uint32_t)(NO_SEQ | NO_INPUT | NO_OUTPUT);
    *nulls &= ~(uint32_t)((entry->group ? NO_GROUP : 0) | (entry->group_desc ? NO_DESC : 0));
    if (entry->device_s >= 0) {
        to->device_dur_ns = (int64_t)(entry->device_s * 1e9);
        *nulls &= ~(uint32_t)NO_DEVICE;
    }
}

static void fill_work(row *to, uint32_t *nulls, const sonde_observed_work *work, int has_entry)
{
    if (work->end_ns != 0) {
        to->dur_ns = work->end_ns - to->t_ns;
        *nulls &= ~(uint32_t)NO_DURATION;
    }
    if (!has_entry && work->is_sized) {
        to->input_bytes = work->bytes;
        *nulls &= ~(uint32_t)NO_INPUT;
    }
}

/* Write one row; either the entry or the work may be missing. */
static void write_row(const sonde_recorder_entry *entry, const sonde_observed_work *work, uint32_t state)
{
    row to = {.state = state};
    uint32_t nulls = 2 * NO_THREAD - 1;
    const char *title = entry != NULL ? entry->title : work->title;
    const char *colon = strchr(title, ':');
    int dtype = entry != NULL ? entry->dtype : work->dtype;
    const char *name = sonde_dtype_name(dtype);
    to.op = put_text(colon == NULL ? title : colon + 1, strlen(colon == NULL ? title : colon + 1));
    to.backend = put_text(title, colon == NULL ? 0 : (size_t)(colon - title));
    to.t_ns = work == NULL || (entry != NULL && created_ns(entry) < work->begin_ns)
                  ? created_ns(entry) : work->begin_ns;
    if (name != NULL) {
        to.dtype = put_text(name, strlen(name));
        nulls &= ~(uint32_t)NO_DTYPE;
    }
    if (entry != NULL)
        fill_entry(&to, &nulls, entry);
    if (work != NULL)
        fill_work(&to, &nulls, work, entry != NULL);
    fill_place(&to, &nulls, entry, work);
    uint64_t words[sizeof to / 8];
    memcpy(words, &to, sizeof to);
    (void)sonde_ring_append(&sonde_collectives.ring, words, nulls); /* a drop is counted there */
}

static sonde_observed_work *find_work(uint64_t serial)
{
    for (uint32_t i = 0; serial != 0 && i < sonde_collectives.works_n; i++)
        if (sonde_collectives.works[i].serial == serial)
            return &sonde_collectives.works[i];
    return NULL;
}

/* ---- settling --------------------------------------------------------------------------------------------- */

static int knows_group(uint32_t name)
{
    int found = name == 0;
    pthread_mutex_lock(&sonde_collectives.lock);
    for (uint32_t i = 0; !found && i < sonde_collectives.groups_n; i++)
        found = sonde_collectives.groups[i].name == name;
    pthread_mutex_unlock(&sonde_collectives.lock);
    return found;
}

static int knows_any_group(void)
{
    pthread_mutex_lock(&sonde_collectives.lock);
    int found = sonde_collectives.groups_n != 0;
    pthread_mutex_unlock(&sonde_collectives.lock);
    return found;
}

static int ask_groups(void *Py_UNUSED(none))
{
    PyObject *ask = Py_XNewRef(sonde_collectives.ask);
    sonde_store_release(&sonde_collectives.is_asked, 0);
    PyObject *result = ask == NULL ? NULL : PyObject_CallNoArgs(ask);
    int is_well = result != NULL || ask == NULL;
    Py_XDECREF(result);
    Py_XDECREF(ask);
    return is_well ? 0 : -1; /* raised by a signal handler: see SourceContext.guard */
}

/* Have Python name the groups, at the main thread's next safe point. */
static void ask_python(void)
{
    if (!sonde_load_acquire(&sonde_collectives.is_asked)) {
        sonde_store_release(&sonde_collectives.is_asked, 1);
        if (Py_AddPendingCall(ask_groups, NULL) < 0)
            sonde_store_release(&sonde_collectives.is_asked, 0); /* the queue is full: next time */
    }
}

/* Is everything known that will be known? */
static int is_done(const sonde_recorder_entry *entry, const sonde_observed_work *work)
{
    if (work != NULL && is_of_host(work->title))
        return work->end_ns != 0;
    return entry->is_over && (work == NULL || work->end_ns != 0);
}

/* Is this entry about something that is not a work of its own (one of several that NCCL does
 * together), or that nobody wanted to see (we were paused)? */
static int is_nothing(const sonde_recorder_entry *entry, const sonde_observed_work *work)
{
    return sonde_collectives.is_observed && work == NULL && (entry->is_over || !is_of_host(entry->title));
}

/* Write what is known about an entry. Returns 1 if nothing more is to be written about it. */
static int settle_entry(sonde_recorder_entry *entry, int64_t now_ns, int is_last)
{
    sonde_observed_work *work = find_work(entry->serial);
    int64_t age_ns = now_ns - created_ns(entry);
    if (is_nothing(entry, work))
        return 1;
    if (!is_last && age_ns < GROUP_NS && !knows_group(entry->group)) {
        ask_python();
        return 0;
    }
    if (is_done(entry, work)) {
        int was_given_up = !is_of_host(entry->title) && !entry->is_completed;
        write_row(entry, work, was_given_up ? sonde_collectives.timeout : sonde_collectives.ended);
        if (work != NULL)
            sonde_observed_update(work, 1);
        return 1;
    }
    if ((age_ns >= RUNNING_NS || is_last) && !entry->was_running) {
        write_row(entry, work, sonde_collectives.running);
        entry->was_running = 1;
    }
    return 0;
}

/* Write a work that has no entry: the recorder does not keep its kind, or has forgotten it. */
static void settle_work(sonde_observed_work *work, int64_t now_ns, int is_last)
{
    int will_have_entry = (sonde_flight_recorder_has(SONDE_RECORDER_CPU) || sonde_flight_recorder_has(SONDE_RECORDER_NCCL)) &&
                       !sonde_collectives.is_unreadable && sonde_collectives.asking_ns < work->begin_ns + 10 * NEAR_NS;
    if (work->is_taken || (will_have_entry && !is_last))
        return;
    if (!will_have_entry && !knows_any_group())
        ask_python(); /* without a recorder nothing else tells that there are groups, and this process's rank */
    if (work->end_ns != 0) {
        write_row(NULL, work, sonde_collectives.ended);
        sonde_observed_update(work, 1);
    } else if ((now_ns - work->begin_ns >= RUNNING_NS || is_last) && !work->was_running) {
        write_row(NULL, work, sonde_collectives.running);
        work->was_running = 1;
        sonde_observed_update(work, 0);
    }
}

int sonde_collectives_write(int is_last)
{
    int64_t now_ns = sonde_clock_ns();
    sonde_collectives.works_n = sonde_observed_copy(sonde_collectives.works);
    if (is_due(now_ns))
        ask_recorders(now_ns);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < sonde_collectives.entries_n; i++)
        if (!settle_entry(&sonde_collectives.entries[i], now_ns, is_last))
            sonde_collectives.entries[kept++] = sonde_collectives.entries[i];
    sonde_collectives.entries_n = kept;
    for (uint32_t i = 0; i < sonde_collectives.works_n; i++)
        settle_work(&sonde_collectives.works[i], now_ns, is_last);
    return sonde_collectives.works_n != 0 || sonde_collectives.entries_n != 0;
}
