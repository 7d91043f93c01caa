"""What recording every module of every step costs on a GPU, beside torch.profiler and hooks."""

from __future__ import annotations

import time
from importlib.util import find_spec

import child
from bench_torch import draw, time_pairs, time_processes
from result import Result

# What waits: how it is called, its shape, steps between two synchronizations, the goal in percent.
MODELS = (
    ("GPU-bound, 197 modules", "GPU", 12, 1.5),
    ("launch-bound, 101 modules", "LAUNCH", 40, 5.0),
)


def measure(rounds: int) -> list[Result]:
    results = []
    with child.open_root() as root:
        if find_spec("torch") is None or not child.call(has_cuda, root=root):
            return [Result("PyTorch on a GPU", "%", [], note="there is no torch with CUDA here")]
    for what, shape, steps, goal in MODELS:
        results += draw(what, time_processes(rounds, time_gpu, shape, steps), goal)
    return results


# ---- in a process of its own ---------------------------------------------------------------------


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def time_gpu(shape: str, steps: int, seconds: float) -> dict[str, object]:
    """Wall time from one synchronization to the next, with many steps in between."""
    import torch
    import transformer

    model, step = transformer.make_step(getattr(transformer, shape), "cuda")

    def time_block() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / steps

    return time_pairs(model, step, time_block, seconds, "wall", has_default=True)
