"""Two ranks that train together; the batches of rank 1 are larger, and rank 0 waits for it."""

from __future__ import annotations

RULE, CAUSE, RANKS = "slow_rank", "rank 1", 2

if __name__ == "__main__":
    import os

    import torch
    import torch.distributed as dist
    from loop import until_over
    from torch.nn.parallel import DistributedDataParallel
    from torch_loop import WIDTH, make_model

    dist.init_process_group(
        "gloo", init_method="file://" + os.environ["MEET"], rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )  # fmt: skip
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    batch, over = torch.ones(600 if dist.get_rank() == 1 else 100, WIDTH), torch.zeros(1)
    steps = until_over()
    while not over.item():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        over[0] = next(steps, -1) < 0
        dist.all_reduce(over)  # both end at the same step
    dist.destroy_process_group()
