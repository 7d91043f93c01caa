"""Two ranks that train together; the shard of rank 1 is slow to read, a few calls below the loop, as
in reports of stragglers with one cold cache or one remote mount."""

from __future__ import annotations

RULE, CAUSE, LINE, RANKS, TWIN = "slow_rank", "it waits", "read_shard", 2, True
ALSO = ("comm_bound",)

if __name__ == "__main__":
    import os
    import time

    import torch
    import torch.distributed as dist
    from loop import FIXED, until_over
    from torch.nn.parallel import DistributedDataParallel
    from torch_loop import WIDTH, make_model

    def read_shard(rank: int) -> torch.Tensor:
        if rank == 1 and not FIXED:
            time.sleep(0.15)  # as a mount that answers late
        return torch.ones(400, WIDTH)

    def load_batch(rank: int) -> torch.Tensor:
        return read_shard(rank) / 2

    dist.init_process_group(
        "gloo", init_method="file://" + os.environ["MEET"], rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )  # fmt: skip
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    over = torch.zeros(1)
    steps = until_over()
    while not over.item():
        batch = load_batch(dist.get_rank())
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        over[0] = next(steps, -1) < 0
        dist.all_reduce(over)  # both end at the same step
    dist.destroy_process_group()
