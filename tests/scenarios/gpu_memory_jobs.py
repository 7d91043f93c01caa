"""Jobs on a GPU whose problem is memory: see gpu_jobs.py."""

from __future__ import annotations

import random

import torch
from gpu_loop import Clock, allow_tf32, make_model, make_optimizer, train_step


def kept_graph(clock: Clock, fixed: bool) -> None:
    """pytorch faq: outputs that are kept in a list outlive their step."""
    allow_tf32()
    model = make_model(2048, 12)
    optimizer = make_optimizer(model)
    batch = torch.randn(16384, 2048, device="cuda")
    outputs = []
    for _ in clock:
        optimizer.zero_grad(set_to_none=True)
        out = model(batch)
        out.square().mean().backward()
        outputs.append(out.detach() if not fixed else None)
        optimizer.step()


def add_loss(average: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    return 0.99 * average + 0.01 * loss


def running_loss(clock: Clock, fixed: bool) -> None:
    """BatsResearch/labelmodels issue 4: a running loss that was not detached keeps every graph."""
    allow_tf32()
    model = make_model(2048, 8)
    optimizer = make_optimizer(model)
    batch, held_out = torch.randn(8192, 2048, device="cuda"), torch.randn(512, 2048, device="cuda")
    average = torch.zeros((), device="cuda")
    for step in clock:
        train_step(model, optimizer, batch)
        loss = model(held_out).square().mean()
        average = add_loss(average, loss.detach() if fixed else loss)
        if step % 10 == 0:
            torch.cuda.synchronize()


def tidy() -> None:
    torch.cuda.empty_cache()


def empty_cache(clock: Clock, fixed: bool) -> None:
    """pytorch forum 14232: empty_cache in every step makes training slow."""
    allow_tf32()
    model = make_model(1024, 8)
    optimizer = make_optimizer(model)
    batch = torch.randn(8192, 1024, device="cuda")
    for _ in clock:
        train_step(model, optimizer, batch)
        if not fixed:
            tidy()


def fragmentation(clock: Clock, fixed: bool) -> None:
    """pytorch/pytorch issue 35901: sequences that get longer leave blocks that none of them fits into. The
    twin begins with the longest, so that there is one block for all."""
    allow_tf32()
    model = make_model(1024, 2)
    optimizer = make_optimizer(model)
    lengths = [5120 * (1 + at) for at in range(40)]  # 20 to 800 MiB for each activation
    chance = random.Random(7)
    for step in clock:
        rows = chance.choice(lengths) if step >= 40 else lengths[-1 - step if fixed else step]
        train_step(model, optimizer, torch.randn(rows, 1024, device="cuda"))
