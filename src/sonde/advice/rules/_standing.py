"""What every thread did in its last seconds, as SQL, for the rules about programs that hang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.verdict import Rows
from sonde.analysis.standstill import StandingThread, add_lock
from sonde.session.held_lock import HeldLock

_STILL_PCT = 97.0  # of the time idle: a thread that wakes up to see whether to go on
# A process that ended by itself did not hang, but some of its threads may have waited for each
# other: that is asked where one was seen waiting for a lock. The end of the recording is what
# counts: whatever has stood still before has moved on. Idle threads have a row each second. How
# long a thread has stood is asked of those alone that do.
SQL = """
WITH asked AS (
  SELECT host, pid, state = 'ended' AS has_ended FROM sonde.session
  WHERE state <> 'ended' OR (host, pid) IN (SELECT (host, pid) FROM python.lock_wait)),
last AS (
  SELECT host, pid, MAX(t_ns) AS end_ns, ANY_VALUE(has_ended) AS has_ended
  FROM python.stack_sample JOIN asked USING (host, pid) WHERE {to_end} GROUP BY 1, 2),
recent AS MATERIALIZED (
  SELECT host, pid, rank, thread, t_ns, wall_ns, stack, samples, idle, gil, wait, end_ns,
         has_ended
  FROM python.stack_sample JOIN last USING (host, pid)
  WHERE {to_end} AND t_ns > end_ns - {least_s} * 1e9),
newest AS MATERIALIZED (
  SELECT host, pid, thread, ANY_VALUE(rank) AS rank, ARG_MAX(stack, t_ns) AS stack,
         ANY_VALUE(end_ns) AS end_ns, ANY_VALUE(has_ended) AS has_ended,
         COUNT(DISTINCT stack) = 1 AS is_still,
         100 * SUM(wall_ns) FILTER (idle) / SUM(wall_ns) AS idle_pct, BOOL_AND(gil) AS has_gil,
         MODE(wait) AS wait, SUM(samples) AS samples
  FROM recent GROUP BY 1, 2, 3 HAVING MAX(t_ns) > ANY_VALUE(end_ns) - 3e9),
moved AS (
  SELECT host, pid, thread, MAX(t_ns) FILTER (s.stack <> newest.stack) AS moved_ns,
         MIN(t_ns - wall_ns) AS begin_ns
  FROM python.stack_sample AS s JOIN newest USING (host, pid, thread)
  WHERE is_still AND {to_end} GROUP BY 1, 2, 3),
frames AS (
  SELECT stack, LIST(func ORDER BY depth) AS funcs, LIST(file ORDER BY depth) AS files,
         LIST(lineno ORDER BY depth) AS lines
  FROM python.frame WHERE stack IN (SELECT stack FROM newest) GROUP BY 1),
name AS (SELECT host, pid, thread, MAX(name) AS name FROM python.thread GROUP BY 1, 2, 3),
lock AS (
  SELECT host, pid, thread, ARG_MAX(lock_wait, t_ns) AS lock
  FROM (SELECT * EXCLUDE (ts) FROM python.lock_wait WHERE {to_end}) AS lock_wait
  SEMI JOIN newest USING (host, pid, thread) GROUP BY 1, 2, 3),
cpu AS (
  SELECT p.host, p.pid, SUM((user_pct + system_pct) * interval_ns) / 1e9 / {least_s} AS cpu_pct,
         MIN(threads) FILTER (process = p.pid) AS kernel_threads
  FROM system.process AS p JOIN last ON last.host = p.host AND last.pid = p.pid
  WHERE p.t_ns > end_ns - {least_s} * 1e9 AND p.t_ns <= end_ns + 2e9 GROUP BY 1, 2),
below AS (
  SELECT host, pid, LIST(newest) AS below FROM (
    SELECT p.host, p.pid, ARG_MAX(struct_pack(process, parent, name, waits_in), p.t_ns) AS newest
    FROM system.process AS p JOIN last ON last.host = p.host AND last.pid = p.pid
    WHERE depth > 0 AND state <> 'Z' AND p.t_ns > end_ns - {least_s} * 1e9
      AND p.t_ns <= end_ns + 2e9
    GROUP BY p.host, p.pid, process) GROUP BY 1, 2),
step AS (
  SELECT host, pid, MEDIAN(dur_ns) / 1e9 AS usual_s, MAX(t_ns + dur_ns) AS step_ns,
         MAX(step) AS step
  FROM python.torch_step WHERE ended_by <> 'end' GROUP BY 1, 2)
SELECT {last_piece} AS piece, host, pid, rank, thread, name, samples, wait, has_gil, idle_pct,
       COALESCE((end_ns - COALESCE(moved_ns, begin_ns)) / 1e9, 0) AS stood_s, end_ns, funcs,
       files, lines, lock, has_ended, cpu_pct, kernel_threads, usual_s, step, below,
       (end_ns - step_ns) / 1e9 AS silent_s
FROM newest LEFT JOIN moved USING (host, pid, thread) LEFT JOIN frames USING (stack)
LEFT JOIN name USING (host, pid, thread) LEFT JOIN cpu USING (host, pid)
LEFT JOIN step USING (host, pid) LEFT JOIN lock USING (host, pid, thread)
LEFT JOIN below USING (host, pid)
"""


def group_processes(rows: Rows) -> Iterator[list[Any]]:
    """Yield the rows of each process."""
    found: dict[tuple[str, int], list[Any]] = {}
    for row in rows:
        found.setdefault((row.host, row.pid), []).append(row)
    yield from found.values()


def read_thread(row: Any) -> StandingThread:
    """Return a row as a value."""
    frames = list(zip(row.funcs or (), row.files or (), row.lines or (), strict=True))
    one = StandingThread(
        row.thread, row.name, row.stood_s, (row.idle_pct or 0) >= _STILL_PCT, bool(row.has_gil),
        row.wait, frames,
    )  # fmt: skip
    return add_lock(one, HeldLock(row.lock) if row.lock else None, row.end_ns)


def has_native_threads(rows: list[Any]) -> bool:
    """Return whether the process has threads that are neither Python's nor sonde's one."""
    known = rows[0].kernel_threads
    return known is None or known > len(rows) + 1
