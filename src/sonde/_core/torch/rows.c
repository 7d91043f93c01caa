/* Calls become rows in a thread of their own, once their names are known and their events of the
 * device are over; what backward spent for each call is added up. Never takes the GIL. */
#include "torch/torch.h"

#include <stdlib.h>
#include <string.h>

enum { BY_HOST = -2 }; /* in place of a device: BY_HOST - its number */
#define LATE_NS INT64_C(10000000000) /* a device that does not answer is not waited for longer */

/* The calls of one step in one lane that are being written. */
typedef struct {
    uint64_t number;
    int64_t begin_ns, total_ns; /* in backward, including the calls inside */
    double device_s;            /* below 0: not known */
    int8_t device;
} back;

static struct {
    sonde_torch_texts texts;
    int64_t seq_step; /* rows of this step so far */
    uint32_t seq;
    uint32_t *counts; /* calls in the step, by module */
    int64_t *count_steps;
    uint32_t counts_n;
    back *backs;
    size_t backs_n;
} rows;

/* ---- one row ------------------------------------------------------------------------------ */

static void append(sonde_torch_row *row, uint32_t nulls)
{
    if (row->step != rows.seq_step) {
        rows.seq_step = row->step;
        rows.seq = 0;
    }
    row->seq = rows.seq++;
    uint64_t words[sizeof *row / 8];
    memcpy(words, row, sizeof words);
    (void)sonde_ring_append(&rows.texts.ring, words, nulls);
}

static uint32_t count_call(uint32_t key, int64_t step)
{
    if (key >= rows.counts_n) {
        uint32_t n = rows.counts_n == 0 ? 1024 : rows.counts_n;
        while (n <= key)
            n *= 2;
        uint32_t *counts = realloc(rows.counts, n * sizeof *counts);
        if (counts != NULL)
            rows.counts = counts;
        int64_t *steps = realloc(rows.count_steps, n * sizeof *steps);
        if (steps != NULL)
            rows.count_steps = steps;
        if (counts == NULL || steps == NULL)
            return 0;
        for (uint32_t i = rows.counts_n; i < n; i++)
            rows.count_steps[i] = -1;
        rows.counts_n = n;
    }
    if (rows.count_steps[key] != step) {
        rows.count_steps[key] = step;
        rows.counts[key] = 0;
    }
    return rows.counts[key]++;
}

static uint32_t name_device(int8_t device)
{
    return device >= 0 && device < 64 ? rows.texts.devices[device] : 0;
}

static sonde_torch_row make_row(const sonde_torch_lane *lane, const sonde_torch_call *call)
{
    return (sonde_torch_row){
        .step = call->step,
        .module = call->module,
        .thread = lane->tid,
        .depth = call->depth,
        .shapes = call->shapes,
        .raised = (call->flags & SONDE_TORCH_RAISED) != 0,
    };
}

/* `kept`: the device that kept up with the host; -1: none. */
static void write_forward(const sonde_torch_lane *lane, sonde_torch_call *call, int8_t kept)
{
    sonde_torch_row row = make_row(lane, call);
    uint32_t nulls = call->shapes == 0 ? SONDE_NULL_SHAPES : 0;
    int64_t took_ns = call->exit_ns - call->enter_ns;
    row.stage = rows.texts.stages[call->stage];
    row.t_ns = call->enter_ns;
    row.duration = (double)took_ns / 1e9;
    row.self_duration = (double)(took_ns - call->inner_ns) / 1e9;
    row.call = call->nth = count_call(call->key, call->step);
    if (call->flags & SONDE_TORCH_MEMORY) {
        row.allocated = call->memory[0];
        row.max_allocated = call->memory[1];
        row.cached = call->memory[2];
    } else {
        nulls |= SONDE_NULL_ALLOCATED | SONDE_NULL_MAX | SONDE_NULL_CACHED;
    }
    double device_s = sonde_torch_event_span(call->events[0], call->events[1]);
    row.timed = device_s >= 0;
    row.device = name_device(sonde_torch_event_device(call->events[0]));
    if (device_s < 0 && kept >= 0 && call->flags & SONDE_TORCH_BY_HOST) {
        device_s = row.duration;
        row.device = name_device(kept);
    }
    if (device_s < 0)
        nulls |= SONDE_NULL_DEVICE_S;
    else
        row.device_duration = device_s;
    if (row.device == 0)
        nulls |= SONDE_NULL_DEVICE;
    append(&row, nulls);
}

static void write_backward(const sonde_torch_lane *lane, const back *one)
{
    const sonde_torch_call *call = sonde_torch_at(lane, one->number);
    sonde_torch_row row = make_row(lane, call);
    uint32_t nulls = SONDE_NULL_ALLOCATED | SONDE_NULL_MAX | SONDE_NULL_CACHED | SONDE_NULL_SHAPES;
    row.stage = rows.texts.stages[2];
    row.t_ns = one->begin_ns;
    row.duration = (double)one->total_ns / 1e9;
    row.self_duration = (double)call->back_ns / 1e9;
    row.raised = 0;
    row.call = call->nth;
    row.shapes = 0;
    int by_host = one->device <= BY_HOST;
    int8_t device = (int8_t)(by_host ? BY_HOST - one->device : one->device);
    double device_s = by_host && sonde_torch_kept_up_in(call->step) != device ? -1 : one->device_s;
    row.device = name_device((int8_t)(device_s < 0 ? -1 : device));
    row.timed = device_s >= 0 && !by_host;
    if (device_s < 0)
        nulls |= SONDE_NULL_DEVICE_S;
    else
        row.device_duration = device_s;
    if (row.device == 0)
        nulls |= SONDE_NULL_DEVICE;
    append(&row, nulls);
}

/* ---- the calls of one step ------------------------------------------------------------------- */

static int compare_backs(const void *a, const void *b)
{
    const back *x = a, *y = b;
    if (x->begin_ns != y->begin_ns)
        return x->begin_ns < y->begin_ns ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Add up from the inside out: what the inner calls spent also belongs to the calls around them. */
static void add_up(const sonde_torch_lane *lane, uint64_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const sonde_torch_call *call = sonde_torch_at(lane, first + i);
        rows.backs[i] = (back){first + i, sonde_load_relaxed(&call->back_begin_ns),
                               sonde_load_relaxed(&call->back_ns), call->back_device_s,
                               call->back_device};
    }
    for (size_t i = n; i-- > 0;) {
        const sonde_torch_call *call = sonde_torch_at(lane, first + i);
        back *inner = &rows.backs[i];
        if (call->parent == SONDE_TORCH_NONE || call->parent < first || inner->begin_ns == 0)
            continue;
        back *outer = &rows.backs[call->parent - first];
        outer->total_ns += inner->total_ns;
        if (outer->begin_ns == 0 || inner->begin_ns < outer->begin_ns)
            outer->begin_ns = inner->begin_ns;
        if (inner->device_s >= 0) {
            outer->device_s = (outer->device_s < 0 ? 0 : outer->device_s) + inner->device_s;
            outer->device = inner->device;
        }
    }
}

/* Return the device that kept up with the host in a call of the program and the calls inside it;
 * -1: none. Where each call has events, they show whether it keeps up. */
static int8_t judge_forward(const sonde_torch_lane *lane, uint64_t first, size_t n)
{
    const sonde_torch_call *root = sonde_torch_at(lane, first);
    int8_t kept = -1;
    int agrees = root->events[0] >= 0 && root->events[1] >= 0;
    for (size_t i = 0; i < n; i++) {
        const sonde_torch_call *call = sonde_torch_at(lane, first + i);
        double device_s = sonde_torch_event_span(call->events[0], call->events[1]);
        int8_t device = sonde_torch_event_device(call->events[0]);
        int64_t host_ns = call->exit_ns - call->enter_ns;
        if (call->events[0] < 0)
            continue;
        if (!(call->flags & SONDE_TORCH_BY_HOST)) {
            sonde_torch_compare(SONDE_DEVICE_FORWARD, call->step, device, device_s, host_ns);
            continue;
        }
        if (!sonde_torch_check(SONDE_DEVICE_FORWARD, call->step, i == 0, device_s, host_ns) ||
            (i > 0 && device != kept))
            agrees = 0;
        kept = device;
    }
    return (int8_t)(agrees ? kept : -1);
}

/* Return how many calls from `first` on, of `n`, belong to one call of the program. */
static size_t count_group(const sonde_torch_lane *lane, uint64_t first, size_t n)
{
    size_t count = 1;
    while (count < n && sonde_torch_at(lane, first + count)->depth > 0)
        count++;
    return count;
}

static void settle(sonde_torch_lane *lane, uint64_t first, size_t n)
{
    if (n > rows.backs_n) {
        back *more = realloc(rows.backs, n * sizeof *more);
        if (more == NULL)
            return;
        rows.backs = more;
        rows.backs_n = n;
    }
    add_up(lane, first, n);
    for (size_t i = 0, count; i < n; i += count) {
        count = count_group(lane, first + i, n - i);
        int8_t kept = judge_forward(lane, first + i, count);
        for (size_t j = i; j < i + count; j++)
            write_forward(lane, sonde_torch_at(lane, first + j), kept);
    }
    sonde_torch_conclude(SONDE_DEVICE_FORWARD, sonde_torch_at(lane, first)->step);
    sonde_torch_conclude(SONDE_DEVICE_BACKWARD, sonde_torch_at(lane, first)->step);
    qsort(rows.backs, n, sizeof *rows.backs, compare_backs);
    for (size_t i = 0; i < n; i++)
        if (rows.backs[i].begin_ns != 0)
            write_backward(lane, &rows.backs[i]);
    for (size_t i = 0; i < n; i++) {
        const sonde_torch_call *call = sonde_torch_at(lane, first + i);
        sonde_torch_event_free(call->events[0]);
        sonde_torch_event_free(call->events[1]);
    }
}

/* ---- what is ready -------------------------------------------------------------------------------- */

static void settle_span(const sonde_torch_span *span, const sonde_torch_span *next)
{
    if (span->lane == NULL)
        return;
    enum { WAY = SONDE_DEVICE_BACKWARD };
    int64_t host_ns = next->t_ns - span->t_ns;
    double device_s = sonde_torch_event_span(span->event, next->event);
    int by_host = span->by_host || next->by_host;
    if (!by_host)
        sonde_torch_compare(WAY, span->step, span->device, device_s, host_ns);
    else if (device_s >= 0 && !sonde_torch_check(WAY, span->step, 0, device_s, host_ns))
        sonde_torch_refuse(span->step);
    /* A device's work does not end when that of another one does. */
    if (device_s < 0 && span->by_host && next->by_host && span->device >= 0 && span->device == next->device)
        device_s = (double)host_ns / 1e9;
    if (device_s >= 0 && span->call >= span->lane->settled) {
        sonde_torch_call *call = sonde_torch_at(span->lane, span->call);
        call->back_device_s = (call->back_device_s < 0 ? 0 : call->back_device_s) + device_s;
        call->back_device = (int8_t)(by_host ? BY_HOST - span->device : span->device);
    }
}

/* Settle the spans of a device in backward whose ends are over. */
static void settle_spans(sonde_torch_lane *lane)
{
    uint64_t head = sonde_load_acquire(&lane->spans_head), at = lane->spans_settled;
    for (; at + 1 < head; at++) {
        const sonde_torch_span *span = &lane->spans[at % SONDE_TORCH_SPANS];
        const sonde_torch_span *next = &lane->spans[(at + 1) % SONDE_TORCH_SPANS];
        if (next->event >= 0 && sonde_torch_event_done(next->event) == 0)
            break;
        settle_span(span, next);
        sonde_torch_event_free(span->event);
    }
    /* The last span, if it belongs to nobody, is only an end. */
    const sonde_torch_span *last = &lane->spans[at % SONDE_TORCH_SPANS];
    if (at + 1 == head && last->lane == NULL && (last->event < 0 || sonde_torch_event_done(last->event) != 0)) {
        sonde_torch_event_free(last->event);
        at++;
    }
    sonde_store_release(&lane->spans_settled, at);
}

static int has_spans_before(int64_t step)
{
    for (sonde_torch_lane *lane = sonde_load_acquire(&sonde_torch.lanes); lane != NULL; lane = lane->next) {
        uint64_t at = lane->spans_settled;
        if (at != sonde_load_acquire(&lane->spans_head) &&
            lane->spans[at % SONDE_TORCH_SPANS].step <= step)
            return 1;
    }
    return 0;
}

static int is_device_done(const sonde_torch_call *call)
{
    return call->events[1] < 0 || sonde_torch_event_done(call->events[1]) != 0;
}

/* Return how many calls from `first` on are of one step that is over; 0: they are not ready. */
static size_t find_ready(const sonde_torch_lane *lane, uint64_t first, int64_t step, int is_last)
{
    uint64_t head = sonde_load_acquire(&lane->head), at = first;
    int64_t its = sonde_torch_at(lane, first)->step, last_ns = 0;
    for (; at < head && sonde_torch_at(lane, at)->step == its; at++) {
        int64_t exit_ns = sonde_load_acquire(&sonde_torch_at(lane, at)->exit_ns);
        if (exit_ns == 0)
            break;
        last_ns = exit_ns;
    }
    int is_open = at < head && sonde_torch_at(lane, at)->step == its;
    if (its >= step || (is_open && !is_last))
        return 0;
    if (!is_last && sonde_clock_ns() - last_ns < LATE_NS) {
        if (has_spans_before(its) || sonde_torch_awaits_pass(its))
            return 0;
        for (uint64_t one = at; one-- > first;)
            if (!is_device_done(sonde_torch_at(lane, one)))
                return 0;
    }
    return (size_t)(at - first);
}

void sonde_torch_rows_write(int is_last)
{
    sonde_torch_device_enter();
    sonde_torch_check_passes();
    int64_t step = is_last ? INT64_MAX : sonde_load_acquire(&sonde_torch.step);
    sonde_torch_lane *lane = sonde_load_acquire(&sonde_torch.lanes);
    for (sonde_torch_lane *one = lane; one != NULL; one = one->next)
        if (one->spans != NULL && sonde_load_acquire(&one->epoch) == sonde_torch.epoch)
            settle_spans(one);
    for (; lane != NULL; lane = lane->next) {
        if (lane->calls == NULL || sonde_load_acquire(&lane->epoch) != sonde_torch.epoch)
            continue;
        uint64_t first = lane->settled;
        size_t n;
        while (first < sonde_load_acquire(&lane->head) &&
               (n = find_ready(lane, first, step, is_last)) > 0) {
            settle(lane, first, n);
            first += n;
            /* Release: the places have been read, and may be written again. */
            sonde_store_release(&lane->settled, first);
        }
    }
}

void sonde_torch_rows_begin(const sonde_torch_texts *texts)
{
    rows.texts = *texts;
    rows.seq_step = -1;
    rows.counts_n = 0;
}
