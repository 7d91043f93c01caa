/* The time of autograd's nodes, and the module calls that they belong to.
 *
 * A node has a number, which its thread gave it when it was made in forward, and a call knows
 * which numbers were given while it ran.
 */
#include "torch/module_call.h"
#include "torch/nodes.h"

#include <stdlib.h>

/* As in module_call.c. */
enum { MEASURE_EVERY = 16, UNSEEN_NS = 500 };

/* ---- whose is it? ----------------------------------------------------------------------------- */

sonde_torch_lane *sonde_torch_find_lane(const sonde_torch_lane *here, uint64_t torch_tid)
{
    if (here->last_lane != NULL && here->last_lane->torch_tid == torch_tid)
        return here->last_lane;
    sonde_torch_lane *lane = sonde_load_acquire(&sonde_torch.lanes);
    while (lane != NULL && (lane->torch_tid != torch_tid || lane->epoch != sonde_torch.epoch ||
                            lane->calls == NULL))
        lane = lane->next;
    return lane;
}

/* Is this the last call that began before the number? Backward goes through the calls in reverse,
 * so those near the previous one are tried first. */
static int is_last_before(const sonde_torch_lane *lane, uint64_t call, uint64_t number, uint64_t head)
{
    return sonde_torch_at(lane, call)->seq_enter <= number &&
           (call + 1 >= head || sonde_torch_at(lane, call + 1)->seq_enter > number);
}

/* Find the innermost call in progress when autograd's counter had this number. */
static uint64_t find_call(const sonde_torch_lane *lane, uint64_t number, uint64_t near)
{
    uint64_t low = sonde_load_acquire(&lane->settled), high = sonde_load_acquire(&lane->head), first = low;
    for (int back = 0; back < 3 && near != SONDE_TORCH_NONE && near >= first + 2; back++, near--)
        if (near < high && is_last_before(lane, near, number, high)) {
            low = high = near + 1;
            break;
        }
    while (low < high) { /* find the last one that began before */
        uint64_t middle = low + (high - low) / 2;
        if (sonde_torch_at(lane, middle)->seq_enter <= number)
            low = middle + 1;
        else
            high = middle;
    }
    uint64_t call = low == first ? SONDE_TORCH_NONE : low - 1;
    while (call != SONDE_TORCH_NONE && call >= first) {
        const sonde_torch_call *one = sonde_torch_at(lane, call);
        if (sonde_load_acquire(&one->exit_ns) == 0 || number < one->seq_exit)
            return call;
        call = one->parent;
    }
    return SONDE_TORCH_NONE;
}

static void find_owner(sonde_torch_lane *here, sonde_torch_node *node, int64_t number, sonde_torch_lane *lane)
{
    if (number >= 0) {
        here->last_lane = lane;
        here->last_call = lane == NULL || lane->calls == NULL
                              ? SONDE_TORCH_NONE
                              : find_call(lane, (uint64_t)number, here->last_call);
    }
    /* A node without a number accumulates a gradient: it belongs to the node before it. */
    node->lane = here->last_call == SONDE_TORCH_NONE ? NULL : here->last_lane;
    node->call = here->last_call;
}

/* ---- its time --------------------------------------------------------------------------------- */

void sonde_torch_node_begin(sonde_torch_lane *here, int by_engine, int64_t number, sonde_torch_lane *lane)
{
    if (here->nodes_n++ >= SONDE_TORCH_DEEP)
        return;
    sonde_torch_node *node = &here->nodes[here->nodes_n - 1];
    *node = (sonde_torch_node){.call = SONDE_TORCH_NONE, .by_engine = by_engine};
    find_owner(here, node, number, lane);
    node->begin_ns = sonde_clock_ns();
}

void sonde_torch_node_end(sonde_torch_lane *here, int by_engine)
{
    int64_t now_ns = sonde_clock_ns();
    if (here->nodes_n == 0 || (here->nodes_n <= SONDE_TORCH_DEEP &&
                               here->nodes[here->nodes_n - 1].by_engine != by_engine))
        return; /* it began before we started, or was seen in another way */
    if (--here->nodes_n >= SONDE_TORCH_DEEP)
        return;
    const sonde_torch_node *node = &here->nodes[here->nodes_n];
    int64_t took_ns = (node->end_ns != 0 ? node->end_ns : now_ns) - node->begin_ns;
    int64_t own_ns = took_ns - node->inner_ns;
    if (here->nodes_n > 0)
        here->nodes[here->nodes_n - 1].inner_ns += took_ns;
    if (node->lane == NULL) {
        sonde_add_relaxed(&sonde_torch.unowned_ns, own_ns);
        return;
    }
    sonde_torch_call *call = sonde_torch_at(node->lane, node->call);
    sonde_add_relaxed(&sonde_torch.owned_ns, own_ns);
    sonde_add_relaxed(&call->back_ns, own_ns);
    int64_t none = 0;
    (void)sonde_cas_relaxed(&call->back_begin_ns, &none, node->begin_ns);
    if (here->measured_n++ % MEASURE_EVERY == 0)
        sonde_add_relaxed(&sonde_torch.direct_ns, ((sonde_clock_ns() - now_ns) * 2 + UNSEEN_NS) * MEASURE_EVERY);
}

void sonde_torch_node_seen(sonde_torch_lane *here, int is_over)
{
    if (here->nodes_n == 0 || here->nodes_n > SONDE_TORCH_DEEP)
        return;
    sonde_torch_node *node = &here->nodes[here->nodes_n - 1];
    *(is_over ? &node->end_ns : &node->begin_ns) = sonde_clock_ns();
}

/* ---- the device's time -------------------------------------------------------------------------- */

/* Note a change of owner, with an event; or, where the device keeps up with the host, with the
 * host's time, and only now and then with an event. Returns whether there was an event. */
static int change_owner(sonde_torch_lane *here, sonde_torch_lane *owner, uint64_t call, int64_t t_ns, int device)
{
    if (here->spans == NULL)
        here->spans = calloc(SONDE_TORCH_SPANS, sizeof *here->spans);
    uint64_t head = here->spans_head, settled = sonde_load_acquire(&here->spans_settled);
    if (here->spans == NULL || head - settled >= SONDE_TORCH_SPANS)
        return 0;
    if (head != settled) {
        const sonde_torch_span *last = &here->spans[(head - 1) % SONDE_TORCH_SPANS];
        if (last->lane == owner && last->call == call)
            return 0;
    } else if (owner == NULL) {
        return 0;
    }
    int64_t step = sonde_load_relaxed(&sonde_torch.step);
    int by_host = SONDE_DEVICE_IS_BY_HOST(device, SONDE_DEVICE_BACKWARD);
    int32_t event = -1;
    if (!by_host || sonde_torch_is_checked((head + (uint64_t)step) / 2))
        event = sonde_torch_event();
    if (event < 0 && !by_host)
        return 0;
    here->spans[head % SONDE_TORCH_SPANS] = (sonde_torch_span){
        owner, call, step, t_ns, event, sonde_torch_device_now(), (uint8_t)by_host};
    /* Release: a span that is there has its fields. */
    sonde_store_release(&here->spans_head, head + 1);
    return event >= 0;
}

void sonde_torch_node_change_owner(sonde_torch_lane *here, int device)
{
    if (here->nodes_n == 0 || here->nodes_n > SONDE_TORCH_DEEP)
        return;
    sonde_torch_node *node = &here->nodes[here->nodes_n - 1];
    if (change_owner(here, node->lane, node->call, node->begin_ns, device))
        node->begin_ns = sonde_clock_ns(); /* recording the event was our own work */
}

void sonde_torch_close_spans(sonde_torch_lane *own)
{
    int device = sonde_torch.device;
    if (!(device & SONDE_DEVICE_BACKWARD))
        return;
    int64_t now_ns = sonde_clock_ns();
    /* The nodes ran in this thread, or in the engine's own threads, which have nothing to do if
     * there is no other pass. */
    for (sonde_torch_lane *lane = sonde_load_acquire(&sonde_torch.lanes); lane != NULL; lane = lane->next)
        if (lane->spans != NULL && lane->epoch == sonde_torch.epoch && (lane == own || sonde_torch.runs == 0))
            (void)change_owner(lane, NULL, SONDE_TORCH_NONE, now_ns, device);
}
