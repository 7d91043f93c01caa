/* A node of autograd's graph, in the thread that runs it; without the GIL. */
#ifndef SONDE_TORCH_NODES_H
#define SONDE_TORCH_NODES_H

#include "torch/torch.h"

sonde_torch_lane *sonde_torch_find_lane(const sonde_torch_lane *here, uint64_t torch_tid);

/* A node runs here that was made in the thread of `lane`, as the one of this number; below 0: it has none.
 * It is the engine that runs it, or an observer that is told. */
void sonde_torch_node_begin(sonde_torch_lane *here, int by_engine, int64_t number, sonde_torch_lane *lane);
void sonde_torch_node_end(sonde_torch_lane *here, int by_engine);
/* An observer was told as well: between these is the node itself, without the work of the engine around it,
 * and of other observers. */
void sonde_torch_node_told(sonde_torch_lane *here, int is_over);
/* The device works for its owner from here on; `device`: sonde_torch.device, read once. */
void sonde_torch_node_mark(sonde_torch_lane *here, int device);

#endif
