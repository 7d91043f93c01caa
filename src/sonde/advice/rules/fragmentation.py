"""Much of the GPU memory that torch holds is in pieces that it cannot use.

Why it hurts: there is memory, but no piece is large enough: `CUDA out of memory` comes long before
the GPU is full.

What to do: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, use few different shapes (pad to
fixed lengths), and allocate the large, lasting tensors first.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

ON_GPU = True
NEEDS = ("python.torch_memory.cached_bytes", "system.gpu.memory_total_bytes")
OTHERWISE = "the job uses no GPU, or for too short a time"
LIMITS = {
    "ratio": Limit(2.0, "held memory is at least this many times the memory in use"),
    "split": Limit(0.25, "or at least this share of held memory is in unusable pieces"),
    "held": Limit(0.3, "only if at least this share of the GPU is held"),
}
# Devices are numbered as the process sees them, so the largest GPU of the host stands for its size.
SQL = """
WITH size AS (SELECT host, MAX(memory_total_bytes) AS total FROM system.gpu GROUP BY host),
step AS (
  SELECT {piece} AS piece, host, pid, rank, device, COUNT(*) AS steps,
         MEDIAN(cached_bytes) AS cached, MEDIAN(allocated_bytes) AS allocated,
         MEDIAN(max_allocated_bytes) AS peak, MEDIAN(inactive_split_bytes) AS split
  FROM python.torch_memory WHERE {inside} AND device <> 'cpu' GROUP BY ALL)
SELECT * FROM step JOIN size USING (host) WHERE total > 0
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        # Between steps activations are gone: what a step needs at most is the fair measure.
        loose = row.cached >= limits.ratio * max(row.peak, row.allocated, 1)
        split = row.split is not None and row.split >= limits.split * max(row.cached, 1)
        evidence = {"held_bytes": row.cached, "most_in_use_bytes": row.peak,
                    "in_pieces_bytes": row.split, "gpu_bytes": row.total}  # fmt: skip
        who = f"{row.device} of " + (f"pid {row.pid}" if row.rank is None else f"rank {row.rank}")
        fired = (loose or split) and row.cached >= limits.held * row.total
        yield Verdict(row.piece, fired, evidence, severity="warning", readings=row.steps, who=who)
