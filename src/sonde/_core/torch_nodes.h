/* A node of autograd's graph, in the thread that runs it; without the GIL. */
#ifndef SONDE_TORCH_NODES_H
#define SONDE_TORCH_NODES_H

#include "torch.h"

sonde_torch_lane *sonde_torch_find_lane(const sonde_torch_lane *here, uint64_t torch_tid);

/* A node runs here that was made in the thread of `lane`, as the one of this number; below 0: it has none.
 * `frame`: the stack's where the engine runs it; NULL: an observer is told. */
void sonde_torch_node_begin(sonde_torch_lane *here, const void *frame, int64_t number, sonde_torch_lane *lane);
void sonde_torch_node_end(sonde_torch_lane *here, const void *frame);
void sonde_torch_node_mark(sonde_torch_lane *here); /* the device works for its owner from here on */

#endif
