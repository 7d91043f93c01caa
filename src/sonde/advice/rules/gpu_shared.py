"""Other programs use the same GPU.

Why it hurts: the GPU works for one of them at a time, so each takes as long as all of them
together, and their memory is missing.

What to do: see whose they are with `nvidia-smi`; end what was forgotten, or give this job a GPU of
its own (CUDA_VISIBLE_DEVICES).
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("system.gpu_process.memory_bytes", "system.gpu.util_pct")
OTHERWISE = "the GPU's library does not tell which processes are the job's"
LIMITS = {
    "least_bytes": Limit(
        3e8, "memory that the others hold, from which on they count: one that computes has more"
    ),
    "busy_pct": Limit(80, "utilisation of the GPU from which on they are in each other's way"),
}
# Only where the job's own processes are seen is it known that the others are not the job's.
SQL = """
WITH reading AS (
  SELECT {piece} AS piece, host, pid, gpu, COUNT(DISTINCT t_ns) AS readings,
         MAX(memory_bytes) FILTER (process IS NOT NULL) AS own_bytes,
         MEDIAN(memory_bytes) FILTER (process IS NULL) AS other_bytes
  FROM system.gpu_process WHERE {inside} GROUP BY 1, 2, 3, 4),
-- A worker of the job has the rest of the job among the others: whoever has least knows best.
other AS (
  SELECT piece, host, gpu, MAX(readings) AS readings, MIN(COALESCE(other_bytes, 0)) AS bytes
  FROM reading WHERE own_bytes > 0 GROUP BY 1, 2, 3),
gpu AS (
  SELECT {piece} AS piece, host, gpu, AVG(util_pct) AS util_pct
  FROM system.gpu WHERE {inside} AND {job_gpu} GROUP BY 1, 2, 3)
SELECT piece, host, gpu, readings, bytes, util_pct
FROM other JOIN gpu USING (piece, host, gpu)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        busy = row.util_pct is not None and row.util_pct >= limits.busy_pct
        yield Verdict(
            row.piece, row.bytes >= limits.least_bytes,
            {"memory_of_others_bytes": row.bytes, "gpu_util_pct": row.util_pct},
            severity="warning" if busy else "info", readings=row.readings,
            who=f"GPU {row.gpu}@{row.host}",
        )  # fmt: skip
