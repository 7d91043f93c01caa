"""The GPUs have time and memory to spare.

Why it hurts: a larger batch would use both and make steps hardly longer.

What to do: raise the batch size (and the learning rate with it) until either is full, fuse small
operations (torch.compile), or put two jobs on one GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from sonde.advice.rules._gpu import USE
from sonde.advice.verdict import Limit, Limits, Rows, Verdict, group

NEEDS = ("system.gpu.util_pct", "system.gpu.memory_used_bytes")
UNLESS = ("alternating", "comm_bound", "debug_mode", "gil_bound", "gpu_uneven", "hang",
          "input_bound", "gpu_allocations", "launch_bound", "low_gpu", "periodic_outliers",
          "pinned_memory", "python_bound", "room_to_grow", "sync_points")  # fmt: skip
OTHERWISE = "the job uses no GPU"
LIMITS = {
    "util_pct": Limit(85, "GPUs with a mean utilisation below this have time to spare"),
    "memory": Limit(0.8, "GPUs with a smaller share of memory in use have memory to spare"),
    "compat": Limit(0, "1: judge GPU 0 alone, as OpenPAI's profiler does"),
}
SQL = USE


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for piece, gpus in group(rows):
        util, used = fmean(row.util_pct for row in gpus), fmean(row.used for row in gpus)
        fired = util < limits.util_pct and used < limits.memory
        evidence = {"util_pct": util, "memory_pct": 100 * used, "gpus": len(gpus)}
        yield Verdict(piece, fired, evidence, severity="info",
                      readings=sum(row.readings for row in gpus))  # fmt: skip
