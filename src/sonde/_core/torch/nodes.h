/* A node of autograd's graph, in the thread that runs it; without the GIL. */
#ifndef SONDE_TORCH_NODES_H
#define SONDE_TORCH_NODES_H

#include "torch/torch.h"

sonde_torch_lane *sonde_torch_find_lane(const sonde_torch_lane *here, uint64_t torch_tid);

/* Begin a node. It was made in the thread of `lane` and has this number; below 0: it has none.
 * Either the engine runs it, or an observer reports it. */
void sonde_torch_node_begin(sonde_torch_lane *here, int by_engine, int64_t number, sonde_torch_lane *lane);
void sonde_torch_node_end(sonde_torch_lane *here, int by_engine);
/* Note that an observer saw the node as well: between its two calls lies the node itself, without
 * the work of the engine and of other observers around it. */
void sonde_torch_node_seen(sonde_torch_lane *here, int is_over);
/* From here on the device works for the node's owner; `device` is sonde_torch.device, read once. */
void sonde_torch_node_change_owner(sonde_torch_lane *here, int device);

#endif
