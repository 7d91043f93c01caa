"""How long a launch on a GPU takes before and after torch.profiler was on once, without sonde.

    python benchmarks/launch_after_profiler.py

Each line is a process of its own: what was on for one operator, and the shortest mean time of a
launch before and after it. `teardown` is with TEARDOWN_CUPTI=1 at that moment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

LAUNCHES, BLOCKS, ROUNDS = 3000, 40, 2
WAYS = ("nothing", "profiler", "profiler of the CPU alone", "teardown")


def main() -> None:
    if len(sys.argv) > 1:
        watch(sys.argv[1])
        return
    for way in WAYS * ROUNDS:
        subprocess.run([sys.executable, __file__, way], check=True)


def watch(way: str) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    numbers = torch.zeros(8, device="cuda")

    def time_block() -> float:
        torch.cuda.synchronize()
        begin_ns = time.perf_counter_ns()
        for _ in range(LAUNCHES):
            numbers.add_(1)
        took_ns = time.perf_counter_ns() - begin_ns
        torch.cuda.synchronize()
        return took_ns / LAUNCHES

    def time_launch() -> float:
        return min(time_block() for _ in range(BLOCKS))

    time_launch()  # the processor and the allocator warm up
    before_ns = time_launch()
    if way != "nothing":
        if way == "teardown":
            os.environ["TEARDOWN_CUPTI"] = "1"
        is_whole = way != "profiler of the CPU alone"
        with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * is_whole):
            numbers.add_(1)
            torch.cuda.synchronize()
        time_block()
        time.sleep(0.5)
    print(f"{way:26} {before_ns:6.0f} ns  {time_launch():6.0f} ns", flush=True)


if __name__ == "__main__":
    main()
