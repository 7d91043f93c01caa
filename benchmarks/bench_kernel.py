"""What the sums of kernels cost, and how near they are to torch.profiler's on the same work."""

from __future__ import annotations

import time
from importlib.util import find_spec
from statistics import median

import child
from bench_cuda import has_cuda
from result import Result, find_noise

SHAPES = (("GPU-bound", "GPU", 60), ("launch-bound", "LAUNCH", 120))  # steps of a block
EVERY = 15  # steps from one window to the next; by default it is 1000
PROFILED = 10
SUMS = """
SELECT step, SUM(count)::BIGINT AS works, SUM(total_ns)::BIGINT AS total_ns FROM python.kernel_sum
WHERE kind <> 'idle' GROUP BY step ORDER BY step
"""
NAMES = """
SELECT kernel, SUM(total_ns)::BIGINT AS total_ns FROM python.kernel_sum
WHERE kind <> 'idle' AND step > (SELECT MIN(step) FROM python.kernel_sum) GROUP BY kernel
"""
WHOLE = """
SELECT 100.0 * SUM(own_ns) FILTER (kind <> 'idle') / SUM(own_ns) AS busy FROM python.kernel_sum
"""


def measure(rounds: int) -> list[Result]:
    """A value is a process, in which steps with and without windows take turns."""
    with child.open_root() as root:
        if find_spec("torch") is None or not child.call(has_cuda, root=root):
            return [Result("sums of kernels", "%", [], note="there is no torch with CUDA here")]
        results = []
        for what, shape, steps in SHAPES:
            found = [child.call(watch, shape, steps, root=root) for _ in range(max(2, rounds))]
            results += draw(what, found)
    return results


def draw(what: str, found: list[dict[str, float]]) -> list[Result]:
    def pick(name: str) -> list[float]:
        return [one[name] for one in found]

    cost = pick("cost_pct")
    return [
        Result(f"{what}: sums of kernels, beside torch.profiler's", "%", pick("off_pct"), 1.0),
        Result("  how many works of a step it counts more or less", "", pick("works"), 0.0),
        Result("  the largest difference of a kernel's share", "points", pick("share"), 1.0),
        Result("  one window makes its steps longer by", "ms", pick("window_ms")),
        Result("  which is, once in 1000 steps", "%", cost, 1.0, noise=find_noise(cost)),
        Result("  true busy time of the device", "%", pick("busy_pct")),
    ]


def watch(shape: str, steps: int) -> dict[str, float]:
    import torch
    import transformer

    import sonde

    _model, step = transformer.make_step(getattr(transformer, shape), "cuda")

    def time_steps(count: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    settings = {"torch_budget_pct": 0, "kernel_every": EVERY, "source.stack": "off"}
    folder = sonde.start(collector="off", **settings)
    time_steps(10)
    longer = time_windows(time_steps, steps)
    theirs, works = profile_steps(step)
    sonde.stop()
    recording = sonde.open(folder)
    sums = recording.query(SUMS).to_pylist()[1:]  # CUPTI is set up in the first
    assert len(sums) > 2, sums
    total_ns = sum(theirs.values())
    ours = {row["kernel"]: row["total_ns"] for row in recording.query(NAMES).to_pylist()}
    own_ns = sum(ours.values())
    shares = [abs(ours.get(name, 0) / own_ns - theirs.get(name, 0) / total_ns)
              for name in ours.keys() | theirs.keys()]  # fmt: skip
    return {
        "off_pct": 100 * abs(median(row["total_ns"] for row in sums) / total_ns - 1),
        "works": abs(median(row["works"] for row in sums) - works),
        "share": 100 * max(shares),
        "window_ms": 1000 * longer["window_s"],
        "cost_pct": 100 * longer["window_s"] / (1000 * longer["step_s"]),
        "busy_pct": recording.query(WHOLE)["busy"][0].as_py(),
    }


def time_windows(time_steps: object, steps: int) -> dict[str, float]:
    """By how much a window lengthens its steps, and how long a step is without."""
    from sonde.job.source_switch import switch_source

    switch_source("kernel", True)
    time_steps(2 * EVERY)  # the first window takes long
    off, more = [], []
    for _ in range(3):
        switch_source("kernel", False)
        plain = time_steps(steps)
        switch_source("kernel", True)
        # Each block begins anew, and has its first window after EVERY steps.
        more.append((time_steps(steps) - plain) / (steps // EVERY))
        off.append(plain / steps)
    return {"window_s": median(more), "step_s": median(off)}


def profile_steps(step: object) -> tuple[dict[str, float], float]:
    """Nanoseconds of each kernel, copy and set of a step by torch's own profiler, and how many."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):
        step()  # the first of a profiler is slow
        torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    count = 0
    for event in profiler.events():
        if str(event.device_type).endswith("CUDA") and not event.is_user_annotation:
            took_ns = 1000 * event.time_range.elapsed_us() / PROFILED
            found[event.name] = found.get(event.name, 0.0) + took_ns
            count += 1
    return found, count / PROFILED
