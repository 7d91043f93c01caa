"""Batches are copied to the GPU from memory that is not pinned.

Why it hurts: the GPU cannot read ordinary memory by itself: each copy goes through a small pinned
buffer first, and the loop waits for it.

What to do: give the DataLoader pin_memory=True and copy with `.to(device, non_blocking=True)`.
Pinning by hand in the loop (`tensor.pin_memory().to(…)`) is slower than not pinning.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "any"
NEEDS = ("python.torch_step.host_to_device_ns", "python.torch_loader.pin_memory")
LIMITS = {
    "moving_pct": Limit(
        5, "of a step between the arrival of a batch and the first call of the model"
    ),
    "seen_pct": Limit(1, "the same, if a capture has seen copies from memory that is not pinned"),
}
SQL = """
WITH job AS (
  SELECT DISTINCT host, pid FROM python.torch_memory WHERE device LIKE 'cuda%'),
step AS (
  SELECT {piece} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps, MAX(ts) AS ts,
         100 * SUM(host_to_device_ns) / SUM(dur_ns) AS moving_pct
  FROM python.torch_step WHERE {inside} AND {main_step} AND ended_by <> 'end' GROUP BY 1, 2, 3),
loader AS (
  SELECT ts, host, pid, dataset, pin_memory, workers FROM python.torch_loader),
copy AS (
  SELECT host, pid, COUNT(*) AS copies, SUM(copied_bytes)::DOUBLE AS bytes FROM python.torch_kernel
  WHERE kind = 'memcpy' AND kernel LIKE '%Pageable%Device%' GROUP BY 1, 2)
SELECT s.piece, s.rank, s.steps, s.moving_pct, l.dataset, l.pin_memory, l.workers,
       COALESCE(c.copies, 0) AS copies, c.bytes
FROM step AS s JOIN job USING (host, pid)
ASOF JOIN loader AS l ON s.host = l.host AND s.pid = l.pid AND s.ts >= l.ts
LEFT JOIN copy AS c ON c.host = s.host AND c.pid = s.pid
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        least = limits.seen_pct if row.copies else limits.moving_pct
        evidence = {
            "moving_pct": row.moving_pct, "dataset": row.dataset, "workers": row.workers,
            "copies_seen": row.copies, "copied_bytes": row.bytes,
        }  # fmt: skip
        yield Verdict(
            row.piece, not row.pin_memory and row.moving_pct >= least, evidence,
            lost_pct=row.moving_pct, readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}",
        )  # fmt: skip
