"""Data is copied to the GPU from memory that is not pinned.

Why it hurts: the GPU cannot read ordinary memory by itself: each copy goes through a small pinned
buffer first, and the loop waits for it.

What to do: give the DataLoader pin_memory=True, or keep the data in pinned memory from the start,
and copy with `.to(device, non_blocking=True)`. Pinning by hand in the loop
(`tensor.pin_memory().to(…)`) is slower than not pinning. What is the same in each step, such as a
table or weights of classes, copy once and keep on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._code import show_place
from sonde.advice.rules._gpu import LOOP
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("python.cuda_call.pinned", "system.gpu.util_pct")
OTHERWISE = "the job has no steps on a GPU"
LIMITS = {
    "copying_pct": Limit(5, "of the steps in copies to the device from memory that is not pinned"),
    "busy_pct": Limit(90, "utilisation of the GPU from which it does not matter"),
}
SQL = f"""
WITH {LOOP},
copy AS (
  SELECT {{piece}} AS piece, host, pid, SUM(dur_ns) AS copy_ns, SUM(bytes) AS bytes,
         SUM(calls) AS copies, ARG_MAX(file, dur_ns) AS file, ARG_MAX(lineno, dur_ns) AS lineno,
         ARG_MAX(func, dur_ns) AS func
  FROM python.cuda_call
  WHERE {{inside}} AND direction = 'host to device' AND NOT pinned AND COALESCE(thread, pid) = pid
  GROUP BY 1, 2, 3)
SELECT piece, rank, steps, util_pct, 100 * COALESCE(copy_ns, 0) / all_ns AS copying_pct,
       COALESCE(bytes, 0) / steps AS bytes, COALESCE(copies, 0) / steps AS copies,
       bytes / copy_ns AS rate, file, lineno, func
FROM step LEFT JOIN gpu USING (piece, host) LEFT JOIN copy USING (piece, host, pid)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        busy = row.util_pct is not None and row.util_pct >= limits.busy_pct
        idle_pct = 100.0 if row.util_pct is None else 100 - row.util_pct
        evidence = {
            "copying_pct": row.copying_pct, "copied_a_step_bytes": row.bytes,
            "copies_a_step": row.copies, "gpu_util_pct": row.util_pct,
        }  # fmt: skip
        yield Verdict(
            row.piece, row.copying_pct >= limits.copying_pct and not busy, evidence,
            lost_pct=min(row.copying_pct, idle_pct), readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}",
            line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip
