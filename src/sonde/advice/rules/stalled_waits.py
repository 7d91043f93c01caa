"""All threads wait for each other, until a timeout ends it.

Why it hurts: meanwhile nobody works, and nothing outside the program is waited for: the time is
simply lost.

What to do: see which thread should have woken the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from sonde.advice.rules._code import FILES, PLACE, SUMS, in_python, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

MOST = "warning"
UNLESS = ("deadlock", "hang")
NEEDS = ("python.stack_sample.wait", "python.frame.func")
LIMITS = {
    "stalled_pct": Limit(20, "of the time in which every thread waits for another"),
    "waiting_pct": Limit(40, "of a thread's time spent so at one line"),
    "waits": Limit(5, "fewest waits in a piece to say that they are equally long"),
    "least_s": Limit(0.05, "usual length of such waits"),
    "equal_pct": Limit(75, "of them that are as long as usual, by a fifth more or less"),
}
# No thread waits for anything but locks at least in the time that is left when all other time, of
# all threads, is taken away. Of a condition, only waits that the user's own code asks for count: an
# Event is often a pause, and a queue that is empty is no loss.
SQL = f"""
WITH thread AS (
  SELECT piece, host, pid, thread, SUM(wall_ns) AS alive_ns, SUM(rows) AS readings,
         COALESCE(SUM(wall_ns) FILTER (NOT idle OR COALESCE(wait, '') <> 'lock'), 0) AS other_ns
  FROM ({SUMS}) GROUP BY 1, 2, 3, 4),
process AS MATERIALIZED (
  SELECT piece, host, pid, COUNT(*) AS threads, SUM(readings)::BIGINT AS readings,
         MAX(alive_ns) AS alive_ns, 100 - 100 * SUM(other_ns) / MAX(alive_ns) AS stalled_pct
  FROM thread WHERE alive_ns > 0 GROUP BY 1, 2, 3),
stalled AS (FROM process WHERE stalled_pct >= {{stalled_pct}}),
sample AS (
  SELECT {{piece}} AS piece, t_ns, host, pid, thread, stack, wall_ns,
         idle AND COALESCE(wait, '') = 'lock' AS is_locked,
         stack IS DISTINCT FROM LAG(stack) OVER moments OR (idle AND samples = 1) AS is_new
  FROM python.stack_sample SEMI JOIN stalled ON stack_sample.host = stalled.host
    AND stack_sample.pid = stalled.pid AND {{piece}} = stalled.piece
  WHERE {{inside}}
  WINDOW moments AS (PARTITION BY host, pid, thread ORDER BY t_ns)),
place AS ({PLACE}),
role AS (
  SELECT stack, BOOL_OR(file LIKE '%/concurrent/futures/thread.py' AND func = '_worker')
           AND BOOL_OR(file LIKE '%/concurrent/futures/_base.py'
                       AND func IN ('Future.result', 'result', 'wait', 'as_completed')) AS is_task,
         BOOL_OR(depth = 0 AND {in_python("threading.py")} AND func IN ('Condition.wait', 'wait'))
           AND (MIN(depth) FILTER (is_own) = 1 OR MIN(depth) FILTER (is_own) = 2
             AND BOOL_OR(depth = 1 AND func IN ('Condition.wait_for', 'wait_for'))) AS is_condition
  FROM python.frame JOIN ({FILES}) USING (file) GROUP BY stack),
numbered AS (
  SELECT *, SUM(is_new::INT) OVER (PARTITION BY host, pid, thread ORDER BY t_ns) AS number
  FROM sample),
stretch AS (
  SELECT piece, host, pid, thread, stack, number, SUM(wall_ns) / 1e9 AS length_s
  FROM numbered WHERE is_locked GROUP BY ALL),
waiting AS (
  SELECT piece, host, pid, thread, file, lineno, func, is_task,
         SUM(length_s) AS all_s, LIST(length_s) AS lengths
  FROM stretch JOIN role USING (stack) JOIN place USING (stack)
  WHERE is_task OR is_condition GROUP BY ALL)
SELECT piece, host, pid, threads, readings, alive_ns / 1e9 AS alive_s, stalled_pct, thread, file,
       lineno, func, is_task, all_s, lengths
FROM process LEFT JOIN waiting USING (piece, host, pid)
"""
_POOL = (
    "The tasks of a thread pool wait for tasks of the same pool, and no thread is left for those",
    "give the inner tasks a pool of their own, or let a task hand its result to the next one "
    "instead of waiting for it (submit from the caller, Future.add_done_callback); more threads "
    "only put it off",
)
_TIMEOUT = (
    "Waits for a condition end by their timeout: nobody wakes the thread",
    "if what it waits for was there before, a notify is missing or came too early: call "
    "notify_all() with the lock held after each change that somebody waits for, and test before "
    "waiting (Condition.wait_for); if the timeout is meant as a pause, all is well",
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    processes: dict[tuple[int, str, int], list[Any]] = {}
    for row in rows:
        processes.setdefault((row.piece, row.host, row.pid), []).append(row)
    for (piece, _host, _pid), found in processes.items():
        stalled = found[0].stalled_pct >= limits.stalled_pct
        long = [row for row in found if stalled and _share(row) >= limits.waiting_pct]
        tasks = [row for row in long if row.is_task]
        timed = [row for row in long if not row.is_task and _are_equal(row.lengths, limits)]
        if tasks:
            yield _accuse(piece, tasks, _POOL, "warning")
        elif timed:
            yield _accuse(piece, timed, _TIMEOUT, "info")
        else:
            yield Verdict(piece, False, readings=found[0].readings)


def _share(row: Any) -> float:
    return 0.0 if row.all_s is None else 100 * row.all_s / row.alive_s


def _are_equal(lengths: list[float], limits: Limits) -> bool:
    """Return whether waits are equally long, as only a timeout makes them."""
    usual = median(lengths)
    equal = sum(1 for one in lengths if abs(one - usual) <= usual / 5)
    return (
        len(lengths) >= limits.waits
        and usual >= limits.least_s
        and 100 * equal >= limits.equal_pct * len(lengths)
    )


def _accuse(piece: int, rows: list[Any], said: tuple[str, str], severity: str) -> Verdict:
    worst = max(rows, key=lambda row: (row.thread == row.pid, row.all_s))
    evidence = {
        "all_threads_wait_pct": worst.stalled_pct, "threads": worst.threads,
        "waits": len(worst.lengths),
        "usual_wait_ns": 1e9 * median(worst.lengths),
    }  # fmt: skip
    return Verdict(
        piece,
        True,
        evidence,
        severity=severity,
        readings=worst.readings,
        who=f"pid {worst.pid}",
        title=said[0],
        todo=said[1],
        line=show_place(worst.file, worst.lineno, worst.func),
    )
