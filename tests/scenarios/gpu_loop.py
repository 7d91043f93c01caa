"""What the jobs on a GPU share: how long they last, a model, a step."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import nn


class Clock:
    """Counts steps until the time is over, which begins with the first of them."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __iter__(self) -> Iterator[int]:
        torch.cuda.synchronize()
        end, step = time.monotonic() + self.seconds, 0
        while time.monotonic() < end:
            yield step
            step += 1


def make_model(width: int, depth: int) -> nn.Sequential:
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Linear(width, 16)).cuda()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-3, fused=True)


def allow_tf32() -> None:
    torch.set_float32_matmul_precision("high")


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor
) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def augment(seconds: float) -> float:
    """Prepare the next batch, on the host."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(200))
    return 1.0
