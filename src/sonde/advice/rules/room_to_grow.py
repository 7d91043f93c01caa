"""GPU, GPU memory and CPU all have room: the job could be larger, or the machine smaller.

Why it hurts: no part of the machine is ever near its limit, and all of it is paid for.

What to do: raise the batch size, run two jobs on the machine, or take a smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("system.gpu.util_pct", "system.gpu.memory_used_bytes", "system.cpu.busy_pct",
         "system.cpu.max_core_pct")  # fmt: skip
UNLESS = ("alternating", "comm_bound", "debug_mode", "gil_bound", "hang", "input_bound",
          "python_bound", "sync_points")  # fmt: skip
OTHERWISE = "the job uses no GPU"
LIMITS = {
    "gpu_pct": Limit(70, "95th percentile of the GPUs' utilisation is below this"),
    "memory_pct": Limit(70, "95th percentile of the GPUs' memory in use is below this"),
    "cpu_pct": Limit(70, "95th percentile of the CPU's use is below this"),
    "core_pct": Limit(90, "and that of its busiest core: a thread that always works has no room"),
}
SQL = """
WITH gpu AS (
  SELECT {piece} AS piece, COUNT(*) AS readings, QUANTILE_CONT(util_pct, 0.95) AS gpu_pct,
         QUANTILE_CONT(100 * memory_used_bytes / memory_total_bytes, 0.95) AS memory_pct
  FROM system.gpu
  WHERE {inside} AND {job_gpu} AND util_pct IS NOT NULL AND memory_used_bytes IS NOT NULL
  GROUP BY piece),
cpu AS (
  SELECT {piece} AS piece, QUANTILE_CONT(busy_pct, 0.95) AS cpu_pct,
         QUANTILE_CONT(max_core_pct, 0.95) AS core_pct
  FROM system.cpu WHERE {inside} AND busy_pct IS NOT NULL GROUP BY piece)
SELECT * FROM gpu JOIN cpu USING (piece)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        evidence = {name: getattr(row, name) for name in LIMITS if getattr(row, name) is not None}
        fired = all(evidence[name] < limits[name] for name in evidence)
        yield Verdict(row.piece, fired, evidence, severity="info", readings=row.readings)
