"""How long ranks are in collectives, as SQL."""

from __future__ import annotations

# Of each rank and step: the time in which some collective was under way. Several may be at a time
# (the buckets of DDP): each adds what the ones before have not covered.
COVERED = """
  SELECT rank, step, SUM(GREATEST(0, end_ns - GREATEST(t_ns, COALESCE(before_ns, 0)))) / 1e9 AS s
  FROM (
    SELECT *, MAX(end_ns) OVER (PARTITION BY rank, pid ORDER BY t_ns
                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns
    FROM (
      SELECT rank, pid, step, t_ns,
             t_ns + COALESCE(device_dur_ns, dur_ns) AS end_ns
      FROM python.collective WHERE state <> 'running' AND rank IS NOT NULL))
  GROUP BY rank, step
"""
