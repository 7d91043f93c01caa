"""Only the first of two ranks saves, and waits in a barrier there; the other one goes on to its next step.

As in EleutherAI/sparsify pull request 5."""

from __future__ import annotations

RULE, CAUSE = "desync", "all_reduce, barrier"
LINE = "save"
RANKS = 2
TWIN, ENDS = True, -9

if __name__ == "__main__":
    import os

    import torch
    import torch.distributed as dist
    from loop import FIXED, end_later
    from torch_loop import make_model

    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meet = "file://" + os.environ["MEET"]
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=ranks)
    end_later()
    model = make_model(128)

    def save(step: int) -> None:
        if not FIXED and dist.get_rank() != 0:
            return
        dist.barrier()

    def train_step(step: int) -> None:
        loss = model(torch.randn(64, 128)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if step == 30:
            save(step)

    step = 0
    while True:
        train_step(step)
        step += 1
