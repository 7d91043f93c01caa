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
