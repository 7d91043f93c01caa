"""SQL that several rules about GPUs share."""

from __future__ import annotations

# How busy and how full each GPU of the job was; with `compat`, GPU 0 alone.
USE = """
SELECT {piece} AS piece, host, gpu, COUNT(*) AS readings, AVG(util_pct) AS util_pct,
       AVG(memory_used_bytes / memory_total_bytes) AS used
FROM system.gpu
WHERE {inside} AND util_pct IS NOT NULL AND memory_used_bytes IS NOT NULL
  AND CASE WHEN {compat} = 1 THEN gpu = 0 ELSE {job_gpu} END
GROUP BY ALL
"""

# The steps of processes that use a GPU, and how busy the job's GPUs were: to be followed by more.
# What a GPU says of itself is of the second before: a reading at the edge may be of another time.
LOOP = """
job AS (SELECT DISTINCT host, pid FROM python.torch_memory WHERE device LIKE 'cuda%'),
step AS (
  SELECT {piece} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
         SUM(dur_ns) AS all_ns
  FROM python.torch_step JOIN job USING (host, pid)
  WHERE {inside} AND {main_step} AND ended_by <> 'end' GROUP BY 1, 2, 3),
gpu AS (
  SELECT {piece} AS piece, host, MEDIAN(util_pct) AS util_pct
  FROM system.gpu WHERE {inside} AND {job_gpu} GROUP BY 1, 2 HAVING COUNT(util_pct) >= 3)"""
