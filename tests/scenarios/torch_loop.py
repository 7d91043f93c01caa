"""A training loop on the CPU, on one thread: about 20 ms of forward and backward a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import chain, repeat

import torch
from loop import show_gpu, until_over
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
WIDTH = 512


class Examples(Dataset):
    """Examples that `load` makes."""

    def __init__(self, load: Callable[[int], object], count: int = 10**6) -> None:
        self.load, self.count = load, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        self.load(index)
        return torch.full((WIDTH,), float(index % 7))


def make_model(width: int = WIDTH, depth: int = 3) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)))


def train(
    batches: Iterable[torch.Tensor],
    after: Callable[[int, torch.Tensor], object] = lambda _step, _loss: None,
    repeats: int = 24,
) -> None:
    """Train until the scenario is over. A batch of 8 is repeated, so that loading costs little
    unless a scenario makes it cost."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for step, batch in zip(until_over(), chain.from_iterable(repeat(batches)), strict=False):
        optimizer.zero_grad()
        loss = model(batch.repeat(repeats, 1)).square().mean()
        loss.backward()
        optimizer.step()
        after(step, loss)


def load(examples: Dataset, num_workers: int = 0, **options: object) -> DataLoader:
    """Load in so many forked workers: from 3.14 on they would each import torch, for longer than a scenario lasts."""
    if num_workers:
        options["multiprocessing_context"] = "fork"
    return DataLoader(examples, batch_size=8, num_workers=num_workers, **options)


def pretend_gpu(util_pct: float) -> None:
    """Be a program that uses a GPU, which the collector finds so busy (see tests/fake)."""
    from sonde.job.recorder import recorder
    from sonde.tables.torch import TorchMemory

    show_gpu(util_pct)
    now_ns = time.monotonic_ns()
    recorder.open_table(TorchMemory, "python.torch_memory")(
        now_ns, 0, "cuda:0", 40 * 10**9, 40 * 10**9, 60 * 10**9, 0, 0, 0
    )
