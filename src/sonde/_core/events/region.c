/* Region and Span: stretches of a program that are begun and ended.
 *
 * An object may be begun again before it has ended (recursion, threads, tasks): each
 * time is an activation. The first one lives in the object, further ones on the heap.
 */
#include "events/region.h"

/* The most activations on the heap in total, and of one object: a program that begins regions and
 * never ends them takes no more memory than that, and one such object leaves room for the others. */
enum { MOST = 65536, MOST_OF_ONE = 16384 };

/* ---- activations ----------------------------------------------------------------- */

static activation *find_room(RegionObject *self)
{
    if (self->first.state == FREE)
        return &self->first;
    if (sonde_load_relaxed(&sonde_events.regions) >= MOST || self->depth >= MOST_OF_ONE)
        return NULL;
    activation *new = PyMem_Malloc(sizeof *new);
    if (new != NULL) {
        sonde_add_relaxed(&sonde_events.regions, 1);
        self->depth++;
    }
    return new;
}

/* Make an activation, which nobody can end before it is pushed. */
static inline activation *make(RegionObject *self, enum state state)
{
    activation *new = find_room(self);
    if (new == NULL)
        return NULL;
    new->epoch = sonde_events.epoch;
    new->unseen = self->unseen;
    new->place = sonde_here();
    new->state = state;
    return new;
}

static inline void push(RegionObject *self, activation *new)
{
    new->below = self->top;
    self->top = new;
}

static inline void drop(RegionObject *self, activation *old)
{
    activation **at = &self->top;
    while (*at != old)
        at = &(*at)->below;
    *at = old->below;
    old->state = FREE;
    if (old == &self->first)
        return;
    sonde_add_relaxed(&sonde_events.regions, -1);
    self->depth--;
    PyMem_Free(old);
}

static int is_same(const sonde_event_place *one, const sonde_event_place *other)
{
    return one->tid == other->tid && one->context == other->context;
}

/* Choose the newest activation of this task, else of this thread, else of all. */
activation *sonde_region_choose(const RegionObject *self)
{
    sonde_event_place here = sonde_here();
    activation *found = NULL;
    for (activation *at = self->top; at != NULL; at = at->below) {
        if (at->place.tid != here.tid)
            continue;
        if (is_same(&at->place, &here))
            return at;
        if (found == NULL)
            found = at;
    }
    return found != NULL ? found : self->top;
}

/* ---- begin ----------------------------------------------------------------------- */

static void fill_slot(const RegionObject *self, activation *new)
{
    if (new->slot == 0)
        return;
    sonde_open *open = sonde_totals_open(sonde_events.totals, new->slot);
    sonde_slot_begin(new->slot, new->place.context);
    sonde_open_begin(open);
    open->id = new->id;
    open->parent = new->parent;
    open->t_ns = new->start_ns;
    open->name = sonde_events_text(self->sub, TO_SPAN, self->name);
    open->domain = sonde_events_text(self->sub, TO_SPAN, self->domain);
    open->kind = self->kind;
    open->thread = new->place.tid;
    open->number = new->number;
    open->is_open = 1;
    sonde_open_end(open);
}

/* Make this the innermost region here. */
static void enter(const sonde_sub *sub, activation *new)
{
    new->outer = sonde_region_current(sub, &new->place);
    sonde_region_set_current(sub, &new->place, new->id);
}

static int64_t next_frame(const RegionObject *self)
{
    uint32_t domain = sonde_events_text(self->sub, TO_SPAN, self->domain);
    uint32_t name = sonde_events_text(self->sub, TO_SPAN, self->name);
    int is_held = sonde_subs_hold(self->sub);
    int64_t number = 0;
    sonde_sum *sum = sonde_events_sum(SONDE_FRAME, domain, name);
    if (sum != NULL) {
        /* Counted here and not at the end, because two may be open at once. `area` is used for
         * counters only. */
        sonde_sum_begin(sum);
        sum->area += 1;
        sonde_sum_end(sum);
        number = (int64_t)sum->area;
    }
    sonde_subs_let(is_held);
    return number;
}

/* Tell the mirror of the beginning, with the parent that was given (0: none) and the attributes,
 * if there are any. */
static int tell_begin(const RegionObject *self, int64_t id)
{
    if (self->sub != NULL || sonde_events.mirror == NULL)
        return 0;
    PyObject *value = NULL, *all = NULL;
    if (self->under != 0 || self->keys != NULL)
        all = PyDict_New();
    for (Py_ssize_t i = 0; all != NULL && self->keys != NULL && i < PyTuple_GET_SIZE(self->keys); i++)
        if (PyDict_SetItem(all, PyTuple_GET_ITEM(self->keys, i),
                           PyTuple_GET_ITEM(self->values, i)) < 0)
            Py_CLEAR(all);
    if (all != NULL)
        value = Py_BuildValue("LN", (long long)self->under, all);
    PyErr_Clear(); /* no memory: tell the mirror without them */
    int status = sonde_events_mirror("begin", self->domain, self->name, self->kind, id, value);
    Py_XDECREF(value);
    return status;
}

static int begin_open(RegionObject *self)
{
    activation *new = make(self, OPEN);
    if (new == NULL) {
        self->unseen++;
        sonde_add_relaxed(&sonde_events.totals->open_lost, 1);
        return 0;
    }
    int is_held = sonde_subs_hold(self->sub);
    new->slot = sonde_slot_take();
    int64_t id = new->id = sonde_events_number(new->slot);
    sonde_subs_let(is_held);
    enter(self->sub, new);
    push(self, new);
    new->parent = self->under ? self->under : sonde_region_around(&new->place, new->outer);
    new->number = self->kind == SONDE_FRAME ? next_frame(self) : 0;
    new->start_ns = sonde_clock_ns();
    new->paused_ns = sonde_events_paused_ns(new->start_ns);
    fill_slot(self, new);
    /* Making a ring runs Python, so another thread may end the region meanwhile. */
    if (self->keys != NULL)
        sonde_attributes_put(self->sub, id, new->start_ns, self->keys,
                             ((PyTupleObject *)self->values)->ob_item);
    return tell_begin(self, id);
}

/* Return a number that changes whenever recording goes on again. */
static int64_t find_pause(void)
{
    return sonde_load_relaxed(&sonde_events.page->resumed_t_ns) + sonde_events.gate_open_ns;
}

static int begin(RegionObject *self)
{
    if (sonde_events_ready(self->sub))
        return begin_open(self);
    activation *new = sonde_events.epoch == 0 ? NULL : make(self, WAITING);
    if (new == NULL) {
        self->unseen++;
        return 0;
    }
    new->start_ns = find_pause();
    push(self, new);
    return 0;
}

int sonde_region_begin(RegionObject *self)
{
    int status;
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    sonde_sub_enter(self->sub, 1u << TO_SPAN | (self->keys != NULL) << TO_ATTRIBUTE);
    status = begin(self);
    sonde_sub_leave(self->sub);
    SONDE_EXCLUDE_END
    return status;
}

/* ---- end ------------------------------------------------------------------------- */

/* Note that this is no longer the innermost region. Returns whether it was; if not (it ends out
 * of order, or in another thread or task), it may still be taken for the innermost one somewhere. */
static int leave(const sonde_sub *sub, const activation *old)
{
    sonde_event_place here = sonde_here();
    if (sonde_region_current(sub, &here) != old->id)
        return 0;
    /* The region around it may have ended before it. */
    sonde_region_set_current(sub, &here, sonde_region_around(&here, old->outer));
    return is_same(&old->place, &here);
}

static void close_slot(const sonde_sub *sub, const activation *old, int is_late)
{
    if (old->slot == 0)
        return;
    sonde_open *open = sonde_totals_open(sonde_events.totals, old->slot);
    sonde_open_begin(open);
    open->is_open = 0;
    sonde_open_end(open);
    int is_held = sonde_subs_hold(sub);
    sonde_slot_give(old->slot, is_late);
    sonde_subs_let(is_held);
}

static void add_up(const sonde_span_row *row, uint32_t kind)
{
    sonde_sum *sum = sonde_events_sum(kind, row->domain, row->name);
    if (sum == NULL)
        return;
    int64_t took = row->dur_ns - row->paused_ns;
    sonde_sum_begin(sum);
    /* All of its time is in the sum, so the sum counts from its beginning. */
    if (row->t_ns < sum->since_ns)
        sum->since_ns = row->t_ns;
    if (sum->count == 0) {
        sum->first_ns = row->t_ns;
        sum->min_ns = sum->max_ns = took;
    }
    sum->count++;
    sum->total_ns += took;
    if (took < sum->min_ns)
        sum->min_ns = took;
    if (took > sum->max_ns)
        sum->max_ns = took;
    sum->last_ns = row->t_ns;
    sonde_sum_end(sum);
}

/* Find from when to when the region was recorded. Returns a word for what is missing, or NULL. */
static const char *clip(activation *old, int64_t *end_ns)
{
    const char *cut;
    int is_on = sonde_events_on();
    if (old->state == WAITING) {
        cut = is_on ? "begin" : "both";
        old->start_ns = sonde_events_resumed_ns();
    } else {
        cut = is_on ? NULL : "end";
    }
    if (!is_on)
        *end_ns = sonde_events_stopped_ns();
    if (*end_ns < old->start_ns)
        *end_ns = old->start_ns;
    return cut;
}

static int write_row(RegionObject *self, activation *old, int64_t now, const char *cut,
                     PyObject *error)
{
    int64_t end_ns = now;
    const char *clipped = clip(old, &end_ns);
    if (cut == NULL)
        cut = clipped;
    if (old->state == WAITING) {
        old->slot = 0;
        old->id = sonde_events_take_number(self->sub);
        old->parent = self->under ? self->under : sonde_region_here(self->sub);
        old->number = self->kind == SONDE_FRAME ? next_frame(self) : 0;
        old->paused_ns = sonde_events_paused_ns(old->start_ns);
    }
    int64_t paused_ns = sonde_events_paused_ns(end_ns) - old->paused_ns;
    if (paused_ns < 0 || old->state == WAITING)
        paused_ns = 0;
    if (paused_ns > end_ns - old->start_ns)
        paused_ns = end_ns - old->start_ns;
    sonde_span_row row = {
        .t_ns = old->start_ns,
        .dur_ns = end_ns - old->start_ns,
        .name = sonde_events_text(self->sub, TO_SPAN, self->name),
        .domain = sonde_events_text(self->sub, TO_SPAN, self->domain),
        .kind = sonde_events_word(self->sub, sonde_kind_names[self->kind]),
        .id = old->id,
        .parent = old->parent,
        .thread = old->place.tid,
        .end_thread = sonde_find_tid(),
        .paused_ns = paused_ns,
        .cut = cut == NULL ? 0 : sonde_events_word(self->sub, cut),
        .number = old->number,
        .error = sonde_events_text(self->sub, TO_SPAN, error),
        .interpreter = sonde_sub_number(self->sub),
    };
    uint32_t nulls = (row.domain ? 0 : SPAN_DOMAIN) | (row.parent ? 0 : SPAN_PARENT) |
                     (row.cut ? 0 : SPAN_CUT) | (row.number ? 0 : SPAN_NUMBER) |
                     (row.error ? 0 : SPAN_ERROR);
    int is_held = sonde_subs_hold(self->sub);
    add_up(&row, self->kind);
    sonde_subs_let(is_held);
    return sonde_events_put(self->sub, TO_SPAN, &row, nulls);
}

/* Does it belong to another recording, or was recording paused from its beginning to its end? */
static int is_unseen(const activation *one)
{
    if (one->epoch != sonde_events.epoch || sonde_events.epoch == 0)
        return 1;
    return one->state == WAITING && one->start_ns == find_pause() && !sonde_events_on();
}

static int end_seen(RegionObject *self, activation *ended, const char *cut, PyObject *error)
{
    /* Making a ring runs Python, and another thread may end the region meanwhile: so it is taken
     * off the list first of all. */
    activation old = *ended;
    drop(self, ended);
    int64_t now = sonde_clock_ns();
    int status = 0, is_late = 0, is_numbered = old.state == OPEN;
    if (is_numbered)
        is_late = !leave(self->sub, &old);
    /* If all of it was in a pause, there may be nowhere to write yet. */
    if (sonde_events.totals != NULL || (self->sub == NULL && sonde_events_wake()))
        status = write_row(self, &old, now, cut, error);
    /* Python may have ended the recording. */
    if (is_numbered && old.epoch == sonde_events.epoch)
        close_slot(self->sub, &old, is_late);
    if (status == 0 && is_numbered && self->sub == NULL)
        status = sonde_events_mirror("end", self->domain, self->name, self->kind, old.id, error);
    return status;
}

static int end_one(RegionObject *self, activation *old, const char *cut, PyObject *error)
{
    if (!is_unseen(old))
        return end_seen(self, old, cut, error);
    drop(self, old);
    return 0;
}

/* Does this end belong to one that began last, or here, while there was no recording? */
static int ends_unseen(const RegionObject *self, const activation *old)
{
    if (old == NULL || self->unseen > old->unseen)
        return 1;
    sonde_event_place here = sonde_here();
    return !is_same(&old->place, &here);
}

static int end(RegionObject *self, PyObject *error)
{
    activation *old = sonde_region_find(self);
    if (self->unseen > 0 && ends_unseen(self, old)) {
        self->unseen--;
        return 0;
    }
    return old == NULL ? 0 : end_one(self, old, NULL, error);
}

int sonde_region_end(RegionObject *self, PyObject *error)
{
    int status;
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    sonde_sub_enter(self->sub, 1u << TO_SPAN);
    status = end(self, error);
    sonde_sub_leave(self->sub);
    SONDE_EXCLUDE_END
    return status;
}

void sonde_region_lose(RegionObject *self)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace); /* an exception may be on its way through here */
    SONDE_EXCLUDE_BEGIN(&sonde_events_turn)
    sonde_sub_enter(self->sub, 0);
    while (self->top != NULL)
        if (end_one(self, self->top, "lost", NULL) < 0)
            PyErr_Clear();
    sonde_sub_leave(self->sub);
    SONDE_EXCLUDE_END
    PyErr_Restore(type, value, trace);
}
