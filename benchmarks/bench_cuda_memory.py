"""What knowing the lines that hold a GPU's memory costs: steps with and without the history."""

from __future__ import annotations

import time
from importlib.util import find_spec
from statistics import median

import child
from bench_cuda import has_cuda
from result import Result, find_noise

SHAPES = (("GPU-bound", "GPU", 6), ("launch-bound", "LAUNCH", 20))
TURNS = 8


def measure(rounds: int) -> list[Result]:
    """Wall time of steps, on and off in turn within a process; a value is a process."""
    with child.open_root() as root:
        if find_spec("torch") is None or not child.call(has_cuda, root=root):
            return [Result("memory of a GPU by line", "%", [], note="there is no CUDA here")]
        results = []
        for what, shape, steps in SHAPES:
            pairs = [child.call(time_steps, shape, steps, root=root) for _ in range(rounds)]
            slower = [100 * (on / off - 1) for off, on, _look in pairs]
            results.append(
                Result(f"memory of a GPU by line, {what}", "%", slower, 1.0,
                       noise=find_noise(slower))
            )  # fmt: skip
            looks = [1000 * look for _off, _on, look in pairs]
            results.append(Result(f"one look at what is alive, {what}", "ms", looks))
    return results


def time_steps(shape: str, steps: int) -> tuple[float, float, float]:
    """Return the time of a step off and on, and of one look, in seconds."""
    import torch
    import transformer

    import sonde
    from sonde.job.source_switch import switch_source
    from sonde.job.sources.cuda_memory import sum_places

    _model, step = transformer.make_step(getattr(transformer, shape), "cuda")
    sonde.start()
    times: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(3):
        step()
    for turn in range(2 * TURNS):
        word = "on" if turn % 2 else "off"
        switch_source("cuda_memory", word == "on")
        step()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times[word].append((time.perf_counter() - begin) / steps)
    begin = time.perf_counter()
    sum_places(torch.cuda.memory_snapshot(), torch.__path__[0])
    look = time.perf_counter() - begin
    sonde.stop()
    return median(times["off"]), median(times["on"]), look
