"""Ranks that torch.multiprocessing.spawn starts: they get their number as an argument, and no
variable tells it. Rank 1 does more with its data."""

from __future__ import annotations

RULE, CAUSE = "slow_rank", "rank 1"
LINE = "read_batch"
ALSO = ("python_bound",)
TWIN = True


def work(rank: int, meet: str, seconds: float, is_fixed: bool) -> None:
    import time

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def read_batch() -> torch.Tensor:
        end = time.thread_time() + (0.03 if rank == 1 and not is_fixed else 0.002)
        while time.thread_time() < end:
            sum(range(200))
        return torch.ones(32, 64)

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    over, end = torch.zeros(1), time.monotonic() + seconds
    while not over.item():
        optimizer.zero_grad()
        model(read_batch()).square().mean().backward()
        optimizer.step()
        over[0] = time.monotonic() > end
        dist.all_reduce(over)  # both end at the same step
    dist.destroy_process_group()


if __name__ == "__main__":
    import os

    import torch.multiprocessing
    from loop import FIXED, SECONDS

    torch.multiprocessing.spawn(work, (os.environ["MEET"], SECONDS, FIXED), nprocs=2)
