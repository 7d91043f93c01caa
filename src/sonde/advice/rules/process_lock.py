"""Processes wait for the same lock.

Why it hurts: processes that need one lock most of the time run one after the other, however many
of them and of processors there are.

What to do: hold the lock for less: do the work (computing, reading, sending) before or after, and
only what must not overlap inside; give each process a file or a part of the data of its own, and
put them together at the end; or let one process write what the others hand it.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._code import PLACE, SUMS, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict, group
from sonde.analysis.wait_words import describe_wait

MOST = "warning"
UNLESS = ("deadlock", "hang")
NEEDS = ("python.stack_sample.wait", "python.stack_sample.call")
OTHERWISE = "no process waits for a lock that it shares with others"
ONLY_IF = (
    "python.stack_sample",
    "BOOL_OR(call IN ('fcntl.flock', 'fcntl.lockf')"
    " OR starts_with(call, '_multiprocessing.SemLock.'))",
)
LIMITS = {
    "waiting_pct": Limit(30, "of each process's time spent waiting for the lock"),
    "processes": Limit(2, "fewest processes that wait at the same line"),
    "at_once": Limit(1.5, "processes that do something else at a time: worth a warning up to here"),
}
# Of a lock of multiprocessing, its own file is the innermost; fcntl has no file. A queue and a pool
# wait for work in files of their own. Whoever stands at the line all the time fights for nothing.
SQL = f"""
WITH sample AS ({SUMS}),
place AS ({PLACE}),
line AS (
  SELECT piece, host, pid, file, lineno, func, SUM(wall_ns) AS waited_ns
  FROM sample JOIN place USING (stack)
  WHERE idle AND wait IN ('lock', 'shared_lock') AND (
    call IN ('fcntl.flock', 'fcntl.lockf') AND leaf_file = file
    OR starts_with(call, '_multiprocessing.SemLock.')
      AND leaf_file LIKE '%/multiprocessing/synchronize.py'
      AND regexp_matches(leaf_func, '(__enter__|acquire)$'))
  GROUP BY ALL),
alive AS (
  SELECT piece, host, pid, SUM(wall_ns) FILTER (thread = pid) AS alive_ns,
         SUM(rows)::BIGINT AS readings
  FROM sample GROUP BY 1, 2, 3 HAVING COUNT(DISTINCT stack) > 1),
party AS (
  SELECT * FROM line JOIN alive USING (piece, host, pid)
  WHERE waited_ns >= {{waiting_pct}} / 100 * alive_ns),
other AS (
  SELECT party.piece, party.host, party.lineno, party.file, place.file AS at_file,
         place.lineno AS at_line, place.func AS at_func, CASE WHEN idle THEN wait END AS at_wait,
         SUM(wall_ns) AS wall_ns
  FROM party JOIN sample USING (piece, host, pid) JOIN place USING (stack)
  WHERE thread = pid AND (place.file, place.lineno) <> (party.file, party.lineno) GROUP BY ALL),
meanwhile AS (
  SELECT piece, host, file, lineno,
         ARG_MAX(struct_pack(at_file, at_line, at_func, at_wait), wall_ns) AS meanwhile
  FROM other GROUP BY ALL)
SELECT piece, host, file, lineno, func, COUNT(*) AS processes, SUM(readings)::BIGINT AS readings,
       100 * SUM(waited_ns)::DOUBLE / SUM(alive_ns) AS waiting_pct,
       SUM(alive_ns - waited_ns)::DOUBLE / MAX(alive_ns) AS at_once,
       ANY_VALUE(meanwhile) AS meanwhile
FROM party LEFT JOIN meanwhile USING (piece, host, file, lineno) GROUP BY ALL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for piece, found in group(rows):
        worst = max(found, key=lambda row: row.processes * row.waiting_pct)
        evidence = {
            "processes": worst.processes, "waiting_pct": worst.waiting_pct,
            "not_waiting_at_a_time": worst.at_once,
        }  # fmt: skip
        if worst.meanwhile is not None:
            evidence["otherwise"] = _tell(worst.meanwhile)
        yield Verdict(
            piece, worst.processes >= limits.processes, evidence,
            severity="warning" if worst.at_once <= limits.at_once else "info",
            readings=worst.readings, line=show_place(worst.file, worst.lineno, worst.func),
        )  # fmt: skip


def _tell(place: dict[str, object]) -> str:
    """Return what these processes do most of the time when they do not wait for the lock."""
    kind = place["at_wait"]
    waits = describe_wait((), str(kind)) if kind else ""
    what = f"waits for {waits}" if waits else "works"
    return f"{what} at {show_place(place['at_file'], place['at_line'], place['at_func'])}"
