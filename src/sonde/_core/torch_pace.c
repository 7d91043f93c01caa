/* Does the device keep up with the host?
 *
 * Where the device waits for the host to launch its work, each module takes the one as long as the
 * other: the host's clock tells the device's time, and an event at each module would tell nothing
 * more, for a microsecond and a half each. So in every few steps all modules get their events. If
 * the device's time was the host's, then in the steps between only the whole gets events: the
 * modules that the program calls, and backward passes. As long as these agree, so do their parts.
 */
#include "torch.h"

#include <string.h>

enum { WITNESSES = 256, ENOUGH = 20 };      /* all but one in ENOUGH agree */
enum { LATENCY_NS = 10000, TOLERANCE = 10 }; /* and a tenth */

typedef struct {
    uint32_t compared, same;
    int8_t device;
    int is_mixed;
} tally;

static struct {
    uint32_t keeps; /* atomic: directions */
    tally tallies[3]; /* by direction */
    sonde_torch_witness witnesses[WITNESSES];
    uint32_t head, heard; /* atomic */
    struct {
        int64_t step;
        int8_t device; /* -1: it did not keep up */
    } verdicts[WITNESSES];
} pace;

int sonde_torch_keeps_pace(void) { return (int)sonde_load_relaxed(&pace.keeps); }

/* ---- what a step with all events says ------------------------------------------------------- */

int sonde_torch_is_same(double device_s, int64_t host_ns)
{
    int64_t apart_ns = (int64_t)(device_s * 1e9) - host_ns;
    return device_s >= 0 && (apart_ns < 0 ? -apart_ns : apart_ns) <= LATENCY_NS + host_ns / TOLERANCE;
}

void sonde_torch_compare(int way, int8_t device, double device_s, int64_t host_ns)
{
    tally *its = &pace.tallies[way];
    if (device_s < 0)
        return;
    its->is_mixed |= its->compared > 0 && its->device != device;
    its->device = device;
    its->compared++;
    its->same += (uint32_t)sonde_torch_is_same(device_s, host_ns);
}

void sonde_torch_conclude(int way)
{
    tally its = pace.tallies[way];
    pace.tallies[way] = (tally){0};
    if (its.compared == 0)
        return;
    /* Of several devices, the clock of the host does not say which one it is. */
    if (!its.is_mixed && (its.compared - its.same) * ENOUGH <= its.compared)
        (void)__atomic_fetch_or(&pace.keeps, (uint32_t)way, __ATOMIC_RELAXED);
    else
        sonde_torch_lose_pace(way);
}

void sonde_torch_lose_pace(int way)
{
    (void)__atomic_fetch_and(&pace.keeps, ~(uint32_t)way, __ATOMIC_RELAXED);
}

/* ---- what stands for the whole of a backward pass --------------------------------------------- */

int32_t sonde_torch_witness_begin(void)
{
    int device = sonde_torch.device;
    return SONDE_DEVICE_IS_BY_HOST(device, SONDE_DEVICE_BACKWARD) ? sonde_torch_event() : -1;
}

void sonde_torch_witness_end(int32_t event, int64_t begin_ns)
{
    if (event < 0)
        return;
    uint32_t head = pace.head;
    if (head - sonde_load_acquire(&pace.heard) >= WITNESSES) {
        sonde_torch_event_free(event);
        return;
    }
    pace.witnesses[head % WITNESSES] = (sonde_torch_witness){
        sonde_torch.step, begin_ns, sonde_clock_ns(), {event, sonde_torch_event()}};
    /* Release: one that is there has its fields. */
    sonde_store_release(&pace.head, head + 1);
}

static void hear(const sonde_torch_witness *one)
{
    int64_t host_ns = one->end_ns - one->begin_ns;
    int is_same = sonde_torch_is_same(sonde_torch_event_span(one->events[0], one->events[1]), host_ns);
    int8_t device = (int8_t)(is_same ? sonde_torch_event_device(one->events[0]) : -1);
    size_t at = (size_t)one->step % WITNESSES;
    if (pace.verdicts[at].step != one->step || device < 0)
        pace.verdicts[at].device = device;
    pace.verdicts[at].step = one->step;
    if (!is_same)
        sonde_torch_lose_pace(SONDE_DEVICE_BACKWARD);
}

void sonde_torch_hear_witnesses(void)
{
    uint32_t at = pace.heard, head = sonde_load_acquire(&pace.head);
    for (; at != head; at++) {
        const sonde_torch_witness *one = &pace.witnesses[at % WITNESSES];
        if (one->events[1] >= 0 && sonde_torch_event_done(one->events[1]) == 0)
            break;
        hear(one);
        sonde_torch_event_free(one->events[0]);
        sonde_torch_event_free(one->events[1]);
        /* Release: its place is read, and may be written again. */
        sonde_store_release(&pace.heard, at + 1);
    }
}

int sonde_torch_awaits_witness(int64_t step)
{
    uint32_t heard = pace.heard;
    return heard != sonde_load_acquire(&pace.head) && pace.witnesses[heard % WITNESSES].step <= step;
}

int8_t sonde_torch_heard(int64_t step)
{
    size_t at = (size_t)step % WITNESSES;
    return (int8_t)(pace.verdicts[at].step == step ? pace.verdicts[at].device : -1);
}

/* Before there is anybody to write or read. Events of a recording before are lost to the pool. */
void sonde_torch_pace_start(void)
{
    memset(&pace, 0, sizeof pace);
    for (int i = 0; i < WITNESSES; i++)
        pace.verdicts[i].step = -1;
}
