"""A GPU is out of memory, or so near to it that the allocator has to give memory back.

Why it hurts: before it fails, torch frees all that it had kept for reuse and asks the driver anew,
which waits for the GPU each time; the next larger batch is `CUDA out of memory`.

What to do: use a smaller batch, activation checkpointing or mixed precision; keep shapes alike
(pad to few lengths) and try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

DANGER = True
ON_GPU = True
NEEDS = ("python.torch_memory.retries",)
OTHERWISE = "the job uses no GPU, or for too short a time"
LIMITS = {
    "retries": Limit(1, "times that memory was given back within a piece, at least"),
    "often": Limit(3, "times from which it is more than a word: once may be chance, or the start"),
}
# Counted since the start: what is new in a piece is more than the most before it.
SQL = """
WITH step AS (
  SELECT *, retries - LAG(retries) OVER line AS tried, ooms - LAG(ooms) OVER line AS failed
  FROM python.torch_memory WHERE device <> 'cpu' AND retries IS NOT NULL
  WINDOW line AS (PARTITION BY host, pid, device ORDER BY t_ns))
SELECT {piece} AS piece, host, pid, rank, device, COUNT(*) AS steps,
       COALESCE(SUM(tried), 0)::BIGINT AS tried, COALESCE(SUM(failed), 0)::BIGINT AS failed,
       MAX(cached_bytes) AS cached, MAX(max_allocated_bytes) AS allocated
FROM step WHERE {inside} GROUP BY ALL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    rows = list(rows)
    tried: Counter[tuple[str, int, str]] = Counter()
    for row in rows:
        tried[row.host, row.pid, row.device] += row.tried
    for row in rows:
        evidence = {
            "total_retries": row.tried, "total_failures": row.failed,
            "max_allocated_bytes": row.allocated, "max_cached_bytes": row.cached,
        }  # fmt: skip
        who = f"{row.device} of " + (f"pid {row.pid}" if row.rank is None else f"rank {row.rank}")
        fired = row.tried >= limits.retries or row.failed > 0
        level = "warning" if tried[row.host, row.pid, row.device] >= limits.often else "info"
        yield Verdict(row.piece, fired, evidence, severity="critical" if row.failed else level,
                      readings=row.steps, who=who)  # fmt: skip
