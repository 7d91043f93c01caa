"""Threads wait for the same lock.

Why it hurts: threads that need one lock most of the time run one after the other, however many
processors there are.

What to do: hold the lock for less (compute before, write after), give each thread or each part of
the data a lock of its own, or hand the work to one thread by a queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._code import PLACE, SUMS, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict, group
from sonde.analysis.code_names import PYTHON, find_owner
from sonde.analysis.wait_words import describe_wait

NEEDS = ("python.stack_sample.wait",)
UNLESS = ("deadlock",)
ONLY_IF = ("python.stack_sample", "BOOL_OR(idle AND COALESCE(wait, 'lock') = 'lock')")
LIMITS = {
    "waiting_pct": Limit(20, "of each thread's time spent waiting for the lock"),
    "threads": Limit(2, "fewest threads that wait at the same line"),
}
# A thread that stands at the line all the time does not fight for a lock: nobody gives it back. A
# line that also works, and not only until it is the thread's turn to run, does more than take one.
# A server may have a thread for each request: of such, as many count as are alive at a time.
SQL = f"""
WITH sample AS ({SUMS}),
place AS ({PLACE}),
moving AS (
  SELECT piece, host, pid, thread, SUM(wall_ns) AS alive_ns FROM sample GROUP BY 1, 2, 3, 4
  HAVING COUNT(DISTINCT stack) > 1),
line AS (
  SELECT piece, host, pid, thread, alive_ns, file, lineno, func, leaf_file, leaf_func, call,
         SUM(wall_ns) FILTER (idle AND COALESCE(wait, 'lock') = 'lock') AS waited_ns,
         COALESCE(SUM(worked_ns) FILTER (NOT idle), 0) AS worked_ns
  FROM sample JOIN moving USING (piece, host, pid, thread) JOIN place USING (stack)
  GROUP BY ALL),
alive AS (
  SELECT piece, host, pid, COUNT(*) AS threads, SUM(rows)::BIGINT AS readings,
         MAX(alive_ns) AS whole_ns
  FROM (SELECT piece, host, pid, thread, SUM(rows) AS rows, SUM(wall_ns) AS alive_ns
        FROM sample GROUP BY 1, 2, 3, 4) GROUP BY 1, 2, 3),
waited AS (
  SELECT piece, host, pid, file, lineno, func, leaf_file, leaf_func, call,
         ROUND(SUM(alive_ns) / ANY_VALUE(whole_ns))::BIGINT AS waiters,
         100 * SUM(waited_ns) / SUM(alive_ns) AS waiting_pct
  FROM line JOIN alive USING (piece, host, pid)
  WHERE waited_ns >= {{waiting_pct}} / 100 * alive_ns AND worked_ns < waited_ns / 10
  GROUP BY ALL),
within AS (
  SELECT DISTINCT waited.piece, host, pid, waited.file, waited.lineno, waited.func, frame.stack
  FROM waited JOIN python.frame AS frame USING (file, func)
  JOIN place ON place.stack = frame.stack
    AND (place.file, place.lineno, place.func) <> (waited.file, waited.lineno, waited.func)),
done AS (
  SELECT piece, host, pid, within.file, within.lineno, within.func,
         place.file AS done_file, place.lineno AS done_line, place.func AS done_func,
         CASE WHEN idle THEN wait END AS done_wait, SUM(wall_ns) AS wall_ns
  FROM sample JOIN within USING (piece, host, pid, stack) JOIN place USING (stack)
  WHERE NOT (idle AND COALESCE(wait, 'lock') IN ('lock', 'gil')) GROUP BY ALL),
meanwhile AS (
  SELECT piece, host, pid, file, lineno, func,
         ARG_MAX(struct_pack(done_file, done_line, done_func, done_wait), wall_ns) AS meanwhile
  FROM done GROUP BY ALL)
SELECT piece, host, pid, threads, readings, file, lineno, func, leaf_file, leaf_func, call,
       COALESCE(waiters, 0) AS waiters, waiting_pct, meanwhile
FROM alive LEFT JOIN waited USING (piece, host, pid)
LEFT JOIN meanwhile USING (piece, host, pid, file, lineno, func)
"""
_INSIDE = ("acquire", "__enter__")  # of Python's own locks that are written in Python
_CALLS = tuple(f"_thread.{kind}.{how}" for kind in ("lock", "RLock") for how in _INSIDE)
_CACHED = (
    "Threads wait for the lock of a functools.cached_property",
    "before Python 3.12 one lock is shared by all instances, and held while a value is worked out "
    "or fetched: keep the value in an attribute of your own (a property that sets `self._value` "
    "where it is None), or run Python 3.12 or later, where there is no such lock",
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for piece, found in group(rows):
        locks = [row for row in found if row.waiters >= limits.threads and _is_lock(row)]
        if not locks:
            yield Verdict(piece, False)
            continue
        worst = max(locks, key=lambda row: row.waiters * row.waiting_pct)
        evidence: dict[str, float | str | None] = {
            "waiting_threads": worst.waiters, "waiting_pct": worst.waiting_pct,
            "threads": worst.threads,
        }  # fmt: skip
        if worst.meanwhile is not None:
            evidence["whoever_is_in"] = _tell(worst.meanwhile)
        title, todo = _CACHED if _is_cached(worst) else ("", "")
        yield Verdict(
            piece, True, evidence, severity="warning", readings=worst.readings,
            who=f"pid {worst.pid}", line=show_place(worst.file, worst.lineno, worst.func),
            title=title, todo=todo,
        )  # fmt: skip


def _tell(place: Any) -> str:
    """Return what is done most of the time in the function that takes the lock."""
    waits = describe_wait((), place["done_wait"]) if place["done_wait"] else ""
    what = f"waits for {waits}" if waits else "works"
    return f"{what} at {show_place(place['done_file'], place['done_line'], place['done_func'])}"


def _is_lock(row: Any) -> bool:
    """Return whether the lock is one of the program. The kernel says that the thread waits for some
    lock: a `with` calls no function, and a queue, a join or a library waits in a frame or in a
    C function of its own."""
    if row.leaf_file.endswith("/threading.py") and find_owner(row.leaf_file) == PYTHON:
        return row.leaf_func.rpartition(".")[2] in _INSIDE
    if _is_cached(row):
        return True
    return row.leaf_file == row.file and (row.call is None or row.call in _CALLS)


def _is_cached(row: Any) -> bool:
    """Return whether it is the lock of a functools.cached_property, until Python 3.12."""
    is_python = row.leaf_file.endswith("/functools.py") and find_owner(row.leaf_file) == PYTHON
    return is_python and row.leaf_func.startswith("cached_property.")
