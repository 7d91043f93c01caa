"""Two ranks with a small model that exchange a lot of numbers in every step."""

from __future__ import annotations

RULE, CAUSE, RANKS = "comm_bound", None, 2

if __name__ == "__main__":
    import os

    import torch
    import torch.distributed as dist
    from loop import until_over
    from torch_loop import WIDTH, make_model

    dist.init_process_group(
        "gloo", init_method="file://" + os.environ["MEET"], rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )  # fmt: skip
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    batch, numbers, over = torch.ones(100, WIDTH), torch.zeros(4_000_000), torch.zeros(1)
    steps = until_over()
    while not over.item():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        dist.all_reduce(numbers)
        optimizer.step()
        over[0] = next(steps, -1) < 0
        dist.all_reduce(over)  # both end at the same step
    dist.destroy_process_group()
