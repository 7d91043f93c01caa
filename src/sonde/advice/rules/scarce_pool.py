"""Threads that have work wait in turn for something that the program has too few of.

Why it hurts: threads that could all wait for a database or a network at the same time stand in a
line for one connection, however many of them there are.

What to do: make the pool (of connections, sessions, clients) or the semaphore as large as the
number of threads that use it at a time, or hold what it gives for less: take it late, and give it
back before computing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._code import FILES, PLACE, SUMS, in_python, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict, group
from sonde.analysis.wait_words import describe_wait

MOST = "warning"
UNLESS = ("deadlock", "hang", "lock_fight", "stalled_waits")
NEEDS = ("python.stack_sample.wait", "python.frame.func")
OTHERWISE = "no thread waits for something that is shared"
IN_FILES = ("/queue.py", "/threading.py")
LIMITS = {
    "waiting_pct": Limit(30, "of each thread's time spent waiting for its turn"),
    "threads": Limit(3, "fewest threads that wait at the same line"),
    "used_pct": Limit(75, "of the time in which all that there are of it are in use"),
    "times": Limit(2, "times as many threads as there are of it, at least"),
}
_ASKS = (
    f"({in_python('queue.py')} AND (func = 'get' OR ends_with(func, '.get'))"
    f" OR {in_python('threading.py')} AND ends_with(func, 'Semaphore.acquire'))"
)
# What calls a thread's first function, and knows nothing of tasks.
_BEGINS = (
    f"({in_python('threading.py')} OR {in_python('runpy.py')} OR file LIKE '<%'"
    " OR file LIKE '%-packages/sonde/%' OR file LIKE '%/src/sonde/%')"
)
# A consumer without an item rests in its outermost function. Who waits further in, in a function
# that also uses what it waited for, or in a task that a library handed to it, has work.
SQL = f"""
WITH sample AS ({SUMS}),
place AS ({PLACE}),
asking AS (SELECT DISTINCT stack FROM python.frame WHERE {_ASKS}),
life AS (
  SELECT piece, host, pid, thread, SUM(wall_ns) AS alive_ns, SUM(rows) AS rows
  FROM sample GROUP BY ALL),
whole AS (
  SELECT piece, host, pid, MAX(alive_ns) AS whole_ns, SUM(rows)::BIGINT AS readings
  FROM life GROUP BY ALL),
waiter AS (
  SELECT piece, host, pid, thread, file, lineno, func, alive_ns, SUM(wall_ns) AS waited_ns,
         ARG_MAX(stack, wall_ns) AS stack
  FROM sample SEMI JOIN asking USING (stack) JOIN place USING (stack)
  JOIN life USING (piece, host, pid, thread)
  WHERE idle AND COALESCE(wait, 'lock') = 'lock' GROUP BY ALL
  HAVING SUM(wall_ns) >= {{waiting_pct}} / 100 * alive_ns),
crew AS (
  SELECT piece, host, pid, file, lineno, func, COUNT(*) AS threads,
         100 * SUM(waited_ns) / SUM(alive_ns) AS waiting_pct, ARG_MAX(stack, waited_ns) AS stack
  FROM waiter GROUP BY ALL HAVING COUNT(*) >= {{threads}}),
past AS (
  SELECT crew.piece, crew.host, crew.pid, crew.file, crew.lineno, crew.func, place.file AS in_file,
         place.lineno AS in_line, place.func AS in_func, SUM(wall_ns) AS used_ns,
         ARG_MAX(wait, wall_ns) AS wait, ARG_MAX(sample.stack, wall_ns) AS used_stack
  FROM crew JOIN waiter USING (piece, host, pid, file, lineno, func)
  JOIN sample USING (piece, host, pid, thread) JOIN place ON place.stack = sample.stack
  ANTI JOIN asking ON asking.stack = sample.stack
  WHERE idle AND COALESCE(wait, 'other') NOT IN ('gil', 'lock', 'shared_lock') GROUP BY ALL),
-- A queue is not fair: one thread may get most of it, and wait for little.
busy AS (
  SELECT piece, host, pid, place.file AS in_file, place.lineno AS in_line, SUM(wall_ns) AS busy_ns
  FROM sample JOIN place USING (stack) WHERE idle AND thread <> pid GROUP BY ALL),
used AS (
  SELECT past.* EXCLUDE (used_ns), busy_ns AS used_ns
  FROM past JOIN busy USING (piece, host, pid, in_file, in_line)
  QUALIFY ROW_NUMBER() OVER (
    PARTITION BY piece, host, pid, file, lineno, func ORDER BY past.used_ns DESC) = 1),
frame AS (
  SELECT stack, depth, func, file, is_own,
         MAX(depth) FILTER (is_own) OVER (PARTITION BY stack) AS top
  FROM python.frame JOIN ({FILES}) USING (file)
  WHERE stack IN (SELECT stack FROM crew UNION ALL SELECT used_stack FROM used)),
handed AS (SELECT DISTINCT stack FROM frame WHERE depth > top AND NOT {_BEGINS}),
shared AS (
  SELECT DISTINCT a.stack, b.stack AS used_stack FROM frame AS a JOIN frame AS b USING (func, file)
  WHERE a.is_own AND a.depth < a.top AND b.depth < b.top)
SELECT piece, pid, readings, threads, waiting_pct, file, lineno, func, in_file, in_line, in_func,
       used.wait AS wait, used_ns / whole_ns AS in_use
FROM whole LEFT JOIN (
  SELECT crew.*, in_file, in_line, in_func, used.wait, used_ns
  FROM crew JOIN used USING (piece, host, pid, file, lineno, func)
  WHERE crew.stack IN (FROM handed)
    OR (crew.stack, used_stack) IN (SELECT (stack, used_stack) FROM shared)) AS used
USING (piece, host, pid)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for piece, found in group(rows):
        scarce = [row for row in found if row.threads is not None and _is_scarce(row, limits)]
        if not scarce:
            yield Verdict(piece, False, readings=sum(row.readings for row in found))
            continue
        worst = max(scarce, key=lambda row: row.threads * row.waiting_pct)
        evidence = {
            "waiting_threads": worst.threads, "of_their_time_pct": worst.waiting_pct,
            "in_use_at_a_time": worst.in_use,
            "each_then_waits_for": describe_wait((), worst.wait) or "something outside",
            "at": f"{worst.in_func}:{worst.in_line}",
        }  # fmt: skip
        yield Verdict(
            piece, True, evidence, severity="warning", readings=worst.readings,
            who=f"pid {worst.pid}", line=show_place(worst.file, worst.lineno, worst.func),
        )  # fmt: skip


def _is_scarce(row: Any, limits: Limits) -> bool:
    """Are as many threads as there are of it always past the wait, and never one more?"""
    there_are = round(row.in_use)
    return bool(
        there_are >= 1
        and 100 * row.in_use >= limits.used_pct * there_are
        and row.threads >= limits.times * there_are
    )
