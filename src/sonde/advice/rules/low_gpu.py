"""The GPUs of the job are idle for much of the time.

Why it hurts: a GPU that waits costs as much as one that works. Something else sets the pace: the
input, Python, synchronisation, communication, or a batch too small to keep it busy.

What to do: see which: `sonde modules TARGET` for the parts of a step, `sonde top TARGET` for what
the main thread does. If nothing waits, raise the batch size.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "any"
NEEDS = ("system.gpu.util_pct",)
UNLESS = ("alternating", "comm_bound", "debug_mode", "gc_pauses", "gil_bound", "hang",
          "input_bound", "launch_bound", "gpu_allocations", "periodic_outliers",
          "pinned_memory", "python_bound", "sync_points")  # fmt: skip
OTHERWISE = "the job uses no GPU"
LIMITS = {
    "low_pct": Limit(30, "mean utilisation below this is worth a warning"),
    "moderate_pct": Limit(70, "mean utilisation below this is worth mentioning"),
    "busy_pct": Limit(70, "95th percentile from which a GPU is busy at times"),
    "idle_pct": Limit(10, "and 5th percentile below which it is idle at times"),
}
SQL = """
SELECT {piece} AS piece, COUNT(*) AS readings, AVG(util_pct) AS util_pct,
       COUNT(DISTINCT gpu) AS gpus,
       QUANTILE_CONT(util_pct, 0.95) AS high_pct, QUANTILE_CONT(util_pct, 0.05) AS least_pct
FROM system.gpu WHERE {inside} AND {job_gpu} AND util_pct IS NOT NULL GROUP BY ALL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        level = "warning" if row.util_pct < limits.low_pct else "info"
        by_turns = row.high_pct >= limits.busy_pct and row.least_pct < limits.idle_pct
        evidence = {"util_pct": row.util_pct, "busiest_pct": row.high_pct,
                    "idlest_pct": row.least_pct, "gpus": row.gpus}  # fmt: skip
        yield Verdict(
            row.piece, row.util_pct < limits.moderate_pct, evidence, severity=level,
            readings=row.readings,
            title="The GPUs of the job alternate between busy and idle" if by_turns else "",
        )  # fmt: skip
