"""The job waits for the disk.

Why it hurts: threads that read or write stand still, and what needs the data waits with them.

What to do: read less often and more at once (shards, WebDataset, Parquet, LMDB instead of many
small files), copy the data to a local disk or to memory first, cache what is decoded, write
checkpoints in the background.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "waiting"
NEEDS = ("system.pressure.some_pct", "system.disk.busy_pct", "system.process.state")
LIMITS = {
    "some_pct": Limit(10, "of the time in which some thread waited for I/O, at least"),
    "disk_pct": Limit(20, "and a disk was at least this busy, where that is known"),
    "own_pct": Limit(
        10, "and the job moved this share of the bytes, or waited for a disk this often"
    ),
}
# The pressure of the job's own container if it is known, otherwise of the machine. Both have other
# processes, too: a job that neither moves bytes nor waits for a disk is not the one that waits.
SQL = """
WITH waiting AS (
  SELECT {piece} AS piece, host, COUNT(*) AS readings,
         COALESCE(AVG(some_pct) FILTER (scope = 'cgroup'), AVG(some_pct)) AS some_pct,
         COALESCE(AVG(full_pct) FILTER (scope = 'cgroup'), AVG(full_pct)) AS full_pct
  FROM system.pressure WHERE {inside} AND resource = 'io' AND some_pct IS NOT NULL
  GROUP BY piece, host),
each AS (
  SELECT {piece} AS piece, host, device, AVG(busy_pct) AS busy_pct,
         SUM(read_bytes) / {piece_s} AS read, SUM(written_bytes) / {piece_s} AS written
  FROM system.disk WHERE {inside} GROUP BY ALL),
disk AS (
  SELECT piece, host, ARG_MAX(device, busy_pct) AS device, MAX(busy_pct) AS busy_pct,
         ARG_MAX(read, busy_pct) AS read, ARG_MAX(written, busy_pct) AS written,
         {piece_s} * SUM(read + written) AS moved
  FROM each GROUP BY piece, host),
process AS (
  SELECT {piece} AS piece, host, process, SUM(read_bytes + written_bytes) AS moved,
         100 * AVG((state = 'D')::INT) AS stood_pct
  FROM system.process WHERE {inside} GROUP BY ALL),
own AS (
  SELECT piece, host, SUM(moved)::DOUBLE AS own_moved, MAX(stood_pct) AS stood_pct FROM process
  GROUP BY piece, host)
SELECT * FROM waiting LEFT JOIN disk USING (piece, host) LEFT JOIN own USING (piece, host)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        busy = row.busy_pct is None or row.busy_pct >= limits.disk_pct
        evidence = {
            "waiting_pct": row.some_pct, "all_waiting_pct": row.full_pct, "disk": row.device,
            "disk_busy_pct": row.busy_pct, "read_a_second_bytes": row.read,
            "written_a_second_bytes": row.written,
        }  # fmt: skip
        known = {name: value for name, value in evidence.items() if value is not None}
        lost = row.some_pct if row.full_pct is None else row.full_pct
        fired = row.some_pct >= limits.some_pct and busy and _is_own(row, limits)
        yield Verdict(row.piece, fired, known, readings=row.readings, lost_pct=lost)


def _is_own(row: Any, limits: Limits) -> bool:
    """Return whether it is the job that waits; assume so if its bytes are unknown."""
    if row.own_moved is None or row.moved is None:
        return True
    share = limits.own_pct / 100
    return bool(row.stood_pct >= limits.own_pct or row.own_moved >= max(1, share * row.moved))
