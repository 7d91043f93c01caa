/* Does the device keep up with the host?
 *
 * Where the device waits for the host to launch its work, each module takes as long on the device
 * as on the host: the host's clock also measures the device, and an event at each module, which
 * costs two microseconds, would add nothing. So once a step with all events has shown that, most
 * modules of the steps after it have none. In each of those steps the whole is checked (the
 * modules that the program calls itself, and backward passes), and so is one part in 16; now and
 * then a step has all events again. Any difference ends this, and the device times of that step
 * are dropped.
 */
#include "torch/torch.h"

#include <string.h>

enum { PASSES = 256, VERDICTS = 1024 };
enum { ENOUGH = 20, MOST_NEED = 64, STRIKES = 2 };

typedef struct {
    int64_t step;
    uint32_t compared, apart;
    int is_refused;
    int8_t device;
} comparison;

/* A backward pass as a whole. */
typedef struct {
    int64_t step, begin_ns;
    int64_t end_ns; /* atomic; 0: in progress */
    int32_t events[2];
} backward_pass;

static struct {
    uint32_t keeps; /* atomic: a bit for each direction */
    struct {
        comparison now;
        int64_t lost;       /* the step in which the pace was lost last */
        uint32_t row, need; /* steps in a row that agreed, and how many must agree */
        uint32_t strikes;   /* parts that did not agree, since the last step in which all did */
    } ways[3];
    backward_pass passes[PASSES];
    uint32_t head, checked; /* atomic */
    struct {
        int64_t step;
        int8_t device; /* -1: it did not keep up */
    } verdicts[VERDICTS];
} pace;

int sonde_torch_keeps_pace(void) { return (int)sonde_load_relaxed(&pace.keeps); }

/* ---- the same? ----------------------------------------------------------------------------------- */

static int is_within(double device_s, int64_t host_ns, int64_t latency_ns, int64_t part)
{
    int64_t device_ns = (int64_t)(device_s * 1e9), apart_ns = device_ns - host_ns;
    int64_t larger_ns = device_ns > host_ns ? device_ns : host_ns;
    return device_s >= 0 && (apart_ns < 0 ? -apart_ns : apart_ns) <= latency_ns + larger_ns / part;
}

/* A few parts of many may differ by this much. */
static int is_same(double device_s, int64_t host_ns) { return is_within(device_s, host_ns, 10000, 10); }
/* No part may differ by this much. */
static int is_near(double device_s, int64_t host_ns) { return is_within(device_s, host_ns, 30000, 4); }
/* A whole must agree more closely, because differences of its parts may cancel out. */
static int is_same_whole(double device_s, int64_t host_ns) { return is_within(device_s, host_ns, 50000, 50); }

/* ---- won and lost ----------------------------------------------------------------------------------- */

static void lose(int way, int64_t step)
{
    uint32_t kept = sonde_and_relaxed(&pace.keeps, ~(uint32_t)way);
    pace.ways[way].row = pace.ways[way].strikes = 0;
    pace.ways[way].lost = step;
    /* If the pace is lost again and again, it must be harder to win back: otherwise it would be
     * just the slow steps that have no times. */
    if (kept & (uint32_t)way && pace.ways[way].need < MOST_NEED)
        pace.ways[way].need *= 2;
}

static void win(int way, int64_t step)
{
    pace.ways[way].strikes = 0;
    if (step <= pace.ways[way].lost)
        return; /* another thread, or another pass of the same step, has lost it */
    if (++pace.ways[way].row < pace.ways[way].need)
        return;
    if (pace.keeps & (uint32_t)way && pace.ways[way].need > 1)
        pace.ways[way].need /= 2;
    (void)sonde_or_relaxed(&pace.keeps, (uint32_t)way);
}

void sonde_torch_compare(int way, int64_t step, int8_t device, double device_s, int64_t host_ns)
{
    comparison *its = &pace.ways[way].now;
    if (device_s < 0)
        return;
    if (its->step != step)
        sonde_torch_conclude(way, its->step);
    /* With several devices, the host's clock does not say which one it measures. */
    its->is_refused |= (its->compared > 0 && its->device != device) || !is_near(device_s, host_ns);
    its->apart += (uint32_t)!is_same(device_s, host_ns);
    its->step = step;
    its->device = device;
    its->compared++;
}

void sonde_torch_conclude(int way, int64_t step)
{
    comparison its = pace.ways[way].now;
    if (its.compared == 0 || its.step > step)
        return;
    pace.ways[way].now = (comparison){0};
    if (!its.is_refused && its.apart * ENOUGH <= its.compared)
        win(way, its.step);
    else
        lose(way, its.step);
}

int sonde_torch_check(int way, int64_t step, int is_whole, double device_s, int64_t host_ns)
{
    int agrees = is_whole ? is_same_whole(device_s, host_ns) : is_near(device_s, host_ns);
    /* A thread that loses its processor between the clock and the event does so once. */
    if (!agrees && device_s >= 0 && (is_whole || ++pace.ways[way].strikes >= STRIKES))
        lose(way, step);
    return agrees;
}

/* ---- backward passes as a whole --------------------------------------------------------------- */

int64_t sonde_torch_pass_begin(int64_t begin_ns)
{
    uint32_t head = pace.head, waiting = head - sonde_load_acquire(&pace.checked);
    if (!SONDE_DEVICE_IS_BY_HOST(sonde_torch.device, SONDE_DEVICE_BACKWARD) || !sonde_torch.on ||
        !sonde_load_relaxed(sonde_torch.allowed) || waiting >= PASSES)
        return -1;
    if (waiting == PASSES / 2)
        sonde_torch_hurry();
    pace.passes[head % PASSES] =
        (backward_pass){.step = sonde_torch.step, .begin_ns = begin_ns, .events = {sonde_torch_event(), -1}};
    /* Release: a pass that is there has its fields. */
    sonde_store_release(&pace.head, head + 1);
    return head;
}

void sonde_torch_pass_end(int64_t number)
{
    if (number < 0)
        return;
    backward_pass *one = &pace.passes[number % PASSES];
    one->events[1] = one->events[0] < 0 ? -1 : sonde_torch_event();
    sonde_store_release(&one->end_ns, sonde_clock_ns());
}

static void decide(int64_t step, int8_t device)
{
    size_t at = (size_t)step % VERDICTS;
    int is_first = pace.verdicts[at].step != step;
    pace.verdicts[at].device = (int8_t)(is_first || pace.verdicts[at].device == device ? device : -1);
    pace.verdicts[at].step = step;
}

void sonde_torch_refuse(int64_t step) { decide(step, -1); }

static void check_pass(const backward_pass *one)
{
    double device_s = sonde_torch_event_span(one->events[0], one->events[1]);
    int agrees = sonde_torch_check(SONDE_DEVICE_BACKWARD, one->step, 1, device_s, one->end_ns - one->begin_ns);
    decide(one->step, (int8_t)(agrees ? sonde_torch_event_device(one->events[0]) : -1));
}

void sonde_torch_check_passes(void)
{
    uint32_t at = pace.checked, head = sonde_load_acquire(&pace.head);
    for (; at != head; at++) {
        const backward_pass *one = &pace.passes[at % PASSES];
        if (sonde_load_acquire(&one->end_ns) == 0 ||
            (one->events[1] >= 0 && sonde_torch_event_done(one->events[1]) == 0))
            break;
        check_pass(one);
        sonde_torch_event_free(one->events[0]);
        sonde_torch_event_free(one->events[1]);
        /* Release: its place has been read, and may be written again. */
        sonde_store_release(&pace.checked, at + 1);
    }
}

int sonde_torch_awaits_pass(int64_t step)
{
    uint32_t checked = pace.checked;
    return checked != sonde_load_acquire(&pace.head) && pace.passes[checked % PASSES].step <= step;
}

int8_t sonde_torch_kept_up_in(int64_t step)
{
    size_t at = (size_t)step % VERDICTS;
    return (int8_t)(pace.verdicts[at].step == step ? pace.verdicts[at].device : -1);
}

/* ---- start and stop ---------------------------------------------------------------------------------- */

/* Call this before any thread writes or reads. */
void sonde_torch_pace_start(void)
{
    memset(&pace, 0, sizeof pace);
    for (int i = 0; i < VERDICTS; i++)
        pace.verdicts[i].step = -1;
    for (int way = 0; way < 3; way++) {
        pace.ways[way].lost = -1;
        pace.ways[way].need = 1;
    }
}

/* Free the events of passes that nobody will check any more. */
void sonde_torch_pace_stop(void)
{
    for (; pace.checked != pace.head; pace.checked++) {
        sonde_torch_event_free(pace.passes[pace.checked % PASSES].events[0]);
        sonde_torch_event_free(pace.passes[pace.checked % PASSES].events[1]);
    }
}
