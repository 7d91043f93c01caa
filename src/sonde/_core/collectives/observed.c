/* Works of c10d, as torch's observers see them.
 *
 * Every backend opens a range around a work: gloo from when one of its threads takes it up until
 * it is over, NCCL while it is handed to the device. A range has the user's scope, so observing
 * only that scope costs torch's operators nothing.
 */
#include "collectives/collectives.h"
#include "kernel/fork.h"
#include "kernel/read_memory.h"
#include "kernel/thread.h"
#include "torch/record_function.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SEARCH_BYTES = 512, SEARCH_VALUES = 8, TRIES = 64 };

/* c10::IValue: a tensor's is its address and a tag. */
typedef struct {
    uintptr_t payload;
    uint32_t tag, pad;
} ivalue;

enum { FREE, OPEN, ENDED };

static struct {
    uint64_t (*add)(sonde_observer), (*add_here)(sonde_observer);
    void (*remove)(uint64_t);
    const char *(*name)(const void *);
    int32_t (*numel)(void *, int64_t *);
    int32_t (*dtype)(void *, int32_t *);
    uint64_t handle, handle_here;
    int is_added; /* torch calls us */
    int is_on;    /* atomic, and changed under the lock: we record what torch reports */
    const uint32_t *on; /* in the control page: are rows wanted? */
    void (*first)(void);
    pthread_mutex_t lock; /* guards what follows */
    uint64_t head;        /* works so far */
    uint32_t waiting;     /* slots that are not free */
    uint64_t lost;
    uint8_t state[SONDE_OBSERVED_MAX];
    sonde_observed_work *slots;
    /* Where a range keeps its values; 0: not known. Written before it is switched on. */
    uintptr_t wanted;
    uint32_t inputs_at, tag;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- what a work was given ----------------------------------------------------------------- */

int sonde_observed_is_sized(void) { return seen.inputs_at != 0; }

/* In the range of an operation on that tensor, search for a view of a few values of which the
 * first is the tensor. */
static void find_inputs(const char *function)
{
    for (uint32_t at = 8; at < SEARCH_BYTES; at += 8) {
        uint64_t view[2];
        ivalue value;
        /* Any word may be taken for an address here, so it is read through the kernel. */
        if (sonde_read_memory(view, (uintptr_t)function + at, sizeof view) < 0)
            return;
        if (view[1] >= 1 && view[1] <= SEARCH_VALUES && sonde_read_memory(&value, view[0], sizeof value) == 0 &&
            value.payload == seen.wanted) {
            seen.tag = value.tag;
            seen.inputs_at = at;
            return;
        }
    }
}

static void measure(sonde_observed_work *work, const char *function)
{
    struct {
        ivalue *values;
        uint64_t count;
    } view;
    memcpy(&view, function + seen.inputs_at, sizeof view);
    for (uint64_t i = 0; i < view.count; i++) {
        int64_t numel = 0;
        int32_t dtype = -1;
        /* A tensor is a class with one member, its address: so this is one. */
        void *tensor = &view.values[i].payload;
        if (view.values[i].tag != seen.tag || view.values[i].payload == 0)
            continue;
        if (seen.numel(tensor, &numel) != 0 || seen.dtype(tensor, &dtype) != 0 ||
            sonde_dtype_bytes(dtype) == 0)
            return;
        work->numel += (uint64_t)numel;
        work->bytes += (uint64_t)numel * sonde_dtype_bytes(dtype);
        work->dtype = (int16_t)dtype;
    }
    work->is_sized = 1;
}

/* ---- what torch calls ------------------------------------------------------------------------ */

__attribute__((visibility("hidden"))) void sonde_observed_begins(const void *function);

static int is_work(const char *title)
{
    static const char *const backends[] = {"gloo:", "nccl:", "ucc:", "mpi:", "xccl:"};
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (strncmp(title, backends[i], strlen(backends[i])) == 0)
            return 1;
    return 0;
}

/* Return a slot for the next work, or NULL. A work that never ends must not stop the others. */
static sonde_observed_work *find_slot(void)
{
    for (int i = 0; i < TRIES; i++, seen.head++) {
        uint32_t at = seen.head % SONDE_OBSERVED_MAX;
        if (seen.state[at] == FREE) {
            seen.state[at] = OPEN;
            return &seen.slots[at];
        }
    }
    return NULL;
}

void sonde_observed_begins(const void *function)
{
    if (!sonde_load_acquire(&seen.is_on))
        return;
    const char *title = seen.name(function);
    if (title == NULL || !is_work(title)) {
        if (title != NULL && seen.wanted != 0 && strncmp(title, "aten::", 6) == 0)
            find_inputs(function);
        return;
    }
    sonde_observed_work work = {.function = function, .begin_ns = sonde_clock_ns(), .dtype = -1,
                       .tid = sonde_find_tid()};
    strncpy(work.title, title, sizeof work.title - 1);
    if (seen.inputs_at != 0)
        measure(&work, function);
    pthread_mutex_lock(&seen.lock);
    /* Checked again, because whoever switches it off unmaps the page afterwards. */
    int is_wanted = sonde_load_relaxed(&seen.is_on) && sonde_load_relaxed(seen.on);
    sonde_observed_work *slot = is_wanted ? find_slot() : NULL;
    int is_first = 0;
    if (slot != NULL) {
        work.serial = ++seen.head;
        *slot = work;
        is_first = seen.waiting++ == 0;
    } else {
        seen.lost += (uint64_t)is_wanted;
    }
    pthread_mutex_unlock(&seen.lock);
    if (is_first)
        seen.first();
}

static void end_work(const void *function, void *Py_UNUSED(context))
{
    int64_t now_ns = sonde_clock_ns();
    const char *title = sonde_load_acquire(&seen.is_on) ? seen.name(function) : NULL;
    if (title == NULL || !is_work(title))
        return;
    pthread_mutex_lock(&seen.lock);
    /* The newest first: most works end soon. */
    for (uint32_t i = 1; seen.waiting != 0 && i <= SONDE_OBSERVED_MAX; i++) {
        uint32_t at = (uint32_t)(seen.head - i) % SONDE_OBSERVED_MAX;
        if (seen.state[at] == OPEN && seen.slots[at].function == function) {
            seen.slots[at].end_ns = now_ns;
            seen.state[at] = ENDED;
            break;
        }
    }
    pthread_mutex_unlock(&seen.lock);
}

SONDE_START_CALLBACK(sonde_observed_begin_work, sonde_observed_begins)

/* ---- for the thread that writes rows ------------------------------------------------------------ */

static int by_serial(const void *one, const void *other)
{
    uint64_t a = ((const sonde_observed_work *)one)->serial, b = ((const sonde_observed_work *)other)->serial;
    return a < b ? -1 : a > b;
}

uint32_t sonde_observed_copy(sonde_observed_work *to)
{
    uint32_t count = 0;
    pthread_mutex_lock(&seen.lock);
    for (uint32_t i = 0; count < seen.waiting && i < SONDE_OBSERVED_MAX; i++)
        if (seen.state[i] != FREE)
            to[count++] = seen.slots[i];
    pthread_mutex_unlock(&seen.lock);
    qsort(to, count, sizeof *to, by_serial);
    return count;
}

void sonde_observed_update(const sonde_observed_work *work, int is_done)
{
    uint32_t at = (uint32_t)(work->serial - 1) % SONDE_OBSERVED_MAX;
    pthread_mutex_lock(&seen.lock);
    if (seen.state[at] != FREE && seen.slots[at].serial == work->serial) {
        seen.slots[at].was_running = work->was_running;
        seen.slots[at].is_taken = work->is_taken;
        if (is_done) {
            seen.state[at] = FREE;
            seen.waiting--;
        }
    }
    pthread_mutex_unlock(&seen.lock);
}

uint64_t sonde_observed_lost(void)
{
    pthread_mutex_lock(&seen.lock);
    uint64_t lost = seen.lost;
    pthread_mutex_unlock(&seen.lock);
    return lost;
}

/* ---- on and off ------------------------------------------------------------------------------------ */

static sonde_observer make_observer(int scope)
{
    sonde_observer ours = {.start = (void *)sonde_observed_begin_work, .end = (void *)end_work, .probability = 1.0};
    ours.scopes_and_needs[scope] = 1;
    ours.scopes_and_needs[SONDE_SCOPES] = seen.numel != NULL && seen.dtype != NULL; /* needs_inputs */
    return ours;
}

void sonde_observed_begin(uintptr_t tensor)
{
    if (seen.add_here == NULL || seen.numel == NULL || seen.dtype == NULL || seen.inputs_at != 0)
        return;
    seen.wanted = tensor;
    seen.handle_here = seen.add_here(make_observer(SONDE_SCOPE_FUNCTION));
}

void sonde_observed_end(void)
{
    if (seen.wanted != 0)
        seen.remove(seen.handle_here);
    seen.wanted = 0;
}

int sonde_observed_start(void *library, const uint32_t *on, void (*first)(void))
{
    if (seen.slots == NULL)
        seen.slots = calloc(SONDE_OBSERVED_MAX, sizeof *seen.slots);
    if (seen.slots == NULL)
        return -ENOMEM;
    seen.add = (uint64_t(*)(sonde_observer))dlsym(library, SONDE_ADD_OBSERVER);
    seen.remove = (void (*)(uint64_t))dlsym(library, SONDE_REMOVE_OBSERVER);
    seen.name = (const char *(*)(const void *))dlsym(library, SONDE_OBSERVED_NAME);
    seen.add_here = (uint64_t(*)(sonde_observer))dlsym(
        library, "_ZN2at22addThreadLocalCallbackENS_22RecordFunctionCallbackE");
    seen.numel = (int32_t(*)(void *, int64_t *))dlsym(library, "aoti_torch_get_numel");
    seen.dtype = (int32_t(*)(void *, int32_t *))dlsym(library, "aoti_torch_get_dtype");
    if (seen.add == NULL || seen.remove == NULL || seen.name == NULL)
        return -ENOENT;
    pthread_mutex_lock(&seen.lock);
    memset(seen.state, FREE, sizeof seen.state);
    seen.waiting = 0;
    seen.on = on;
    seen.first = first;
    /* Release: whoever sees that it is on sees all of the above. */
    sonde_store_release(&seen.is_on, 1);
    pthread_mutex_unlock(&seen.lock);
    if (seen.is_added)
        return 0; /* it was added by the process that this one was forked from */
    seen.handle = seen.add(make_observer(SONDE_SCOPE_USER));
    seen.is_added = 1;
    return 0;
}

void sonde_observed_stop(void)
{
    pthread_mutex_lock(&seen.lock);
    int was_on = seen.is_on;
    sonde_store_release(&seen.is_on, 0);
    pthread_mutex_unlock(&seen.lock);
    /* Do not remove it in a forked child: a thread of its parent may have been inside torch's
     * lock. */
    if (was_on && seen.is_added) {
        seen.remove(seen.handle);
        seen.is_added = 0;
    }
}

static void forget_in_child(void)
{
    /* Torch goes on calling us; we ignore it until we are started again. */
    SONDE_RESET(seen.lock, PTHREAD_MUTEX_INITIALIZER);
    SONDE_RESET(seen.is_on, 0);
}

SONDE_IN_CHILD(forget_in_child)
