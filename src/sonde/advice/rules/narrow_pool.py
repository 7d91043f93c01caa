"""All work of a thread pool goes through one thread, which mostly waits.

Why it hurts: the main thread waits for results that come one after the other, although more
threads could wait for them at the same time.

What to do: give the pool more threads (`max_workers`), and hand it all of the work before asking
for the first result: `pool.submit(…).result()` in a loop never uses more than one.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._code import PLACE, SUMS, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict
from sonde.analysis.wait_words import describe_wait

MOST = "warning"
UNLESS = ("deadlock", "hang", "lock_fight")
NEEDS = ("python.stack_sample.wait", "python.frame.func")
OTHERWISE = "no thread pool was seen"
IN_FILES = ("/concurrent/futures/thread.py", "/multiprocessing/pool.py")
LIMITS = {
    "asking_pct": Limit(50, "of the main thread's time spent waiting for results of a pool"),
    "working_pct": Limit(70, "of the time in which the pool's only thread has work"),
    "waiting_pct": Limit(50, "of that time spent waiting: not for a processor, a lock or the GIL"),
}
_POOL = (
    "(file LIKE '%/concurrent/futures/thread.py' AND func = '_worker'"
    " OR file LIKE '%/multiprocessing/pool.py' AND func = 'worker')"
)
_ASKS = (
    "(file LIKE '%/concurrent/futures/_base.py'"
    " OR file LIKE '%/concurrent/futures/thread.py' AND func LIKE '%shutdown'"
    " OR file LIKE '%/multiprocessing/pool.py' AND regexp_matches(func, '(wait|get|next)$'))"
)
# A thread of a pool without work is in the pool's own loop, and in no frame further in. Processes
# of a pool run the same loop, in their main thread.
SQL = f"""
WITH sample AS (
  SELECT piece, host, pid, thread, stack, idle,
         CASE WHEN idle THEN COALESCE(wait, 'other') END AS wait, SUM(wall_ns) AS wall_ns,
         SUM(samples) AS samples
  FROM ({SUMS}) GROUP BY ALL),
pooled AS (
  SELECT stack, MIN(depth) AS depth FROM python.frame WHERE {_POOL} GROUP BY stack),
asking AS (SELECT DISTINCT stack FROM python.frame WHERE {_ASKS}),
place AS ({PLACE}),
main AS (
  SELECT piece, host, pid, SUM(wall_ns) AS alive_ns, SUM(samples)::BIGINT AS readings,
         COALESCE(SUM(wall_ns) FILTER (idle AND stack IN (FROM asking)), 0) AS asking_ns
  FROM sample WHERE thread = pid GROUP BY ALL),
line AS (
  SELECT piece, host, pid, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place
  FROM (SELECT piece, host, pid, file, lineno, func, SUM(wall_ns) AS wall_ns
        FROM sample JOIN place USING (stack)
        WHERE thread = pid AND idle AND stack IN (FROM asking) GROUP BY ALL) GROUP BY ALL),
kind AS (
  SELECT piece, host, pid, thread, wait, SUM(wall_ns) AS wall_ns,
         COALESCE(SUM(wall_ns) FILTER (depth > 0), 0) AS work_ns
  FROM sample JOIN pooled USING (stack) WHERE thread <> pid GROUP BY ALL),
worker AS (
  SELECT piece, host, pid, COUNT(DISTINCT thread) AS threads, SUM(wall_ns) AS wall_ns,
         SUM(work_ns) AS work_ns, ARG_MAX(wait, work_ns) AS wait,
         COALESCE(SUM(work_ns) FILTER (wait NOT IN ('gil', 'lock', 'shared_lock')), 0) AS wait_ns
  FROM kind GROUP BY ALL)
SELECT piece, pid, threads, readings, asking_ns / alive_ns * 100 AS asking_pct,
       work_ns / GREATEST(wall_ns, 1) * 100 AS working_pct,
       wait_ns / GREATEST(work_ns, 1) * 100 AS waiting_pct, wait, place.file AS file,
       place.lineno AS lineno, place.func AS func
FROM main JOIN worker USING (piece, host, pid) LEFT JOIN line USING (piece, host, pid)
WHERE alive_ns > 0
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        fired = (
            row.threads == 1
            and row.asking_pct >= limits.asking_pct
            and row.working_pct >= limits.working_pct
            and row.waiting_pct >= limits.waiting_pct
        )
        evidence = {
            "threads": row.threads, "main_thread_waits_for_it_pct": row.asking_pct,
            "its_thread_has_work_pct": row.working_pct, "of_that_waiting_pct": row.waiting_pct,
            "mostly_for": describe_wait((), row.wait) or "something outside the program",
        }  # fmt: skip
        yield Verdict(
            row.piece, fired, evidence, severity="warning", readings=row.readings,
            who=f"pid {row.pid}", line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip
