"""How long ranks spend in collectives, as SQL."""

from __future__ import annotations

# The time of each rank and step in which some collective was in progress. Several may run at a time
# (the buckets of DDP): each adds only what those before it have not covered.
COVERED = """
  SELECT rank, step, SUM(GREATEST(0, end_ns - GREATEST(t_ns, COALESCE(before_ns, 0)))) / 1e9 AS s
  FROM (
    SELECT *, MAX(end_ns) OVER (PARTITION BY rank, pid ORDER BY t_ns
                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns
    FROM (
      SELECT rank, pid, step, t_ns,
             t_ns + COALESCE(device_dur_ns, dur_ns) AS end_ns
      FROM python.collective
      WHERE {inside} AND state <> 'running' AND rank IS NOT NULL))
  GROUP BY rank, step
"""
