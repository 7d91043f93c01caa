"""Most workers of a pool of processes have nothing to do while one works.

Why it hurts: the program waits for the result of all, and that takes as long as the worker that got
the most; the processors of the others are paid for and idle.

What to do: hand out smaller and more even pieces (chunksize=1 or imap_unordered where items differ
in size, the largest first, a large item split into several), and hand out all of them before
waiting for the first (map, apply_async; apply and submit(…).result() wait for each).
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._code import PLACE, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

MOST = "warning"
UNLESS = ("deadlock", "hang", "pool_overhead", "stalled_waits")
NEEDS = ("python.stack_sample.idle", "python.frame.func")
OTHERWISE = "no pool of processes was seen"
IN_FILES = ("/multiprocessing/pool.py", "/concurrent/futures/process.py")
LIMITS = {
    "asking_pct": Limit(50, "of a thread's time spent waiting for results of the pool"),
    "alone_pct": Limit(50, "of the time in which exactly one worker has a task"),
    "together": Limit(0.5, "share of the workers that have a task at a time, at most, on average"),
    "workers": Limit(3, "fewest workers of the pool"),
    "alone_of_two_pct": Limit(70, "as alone_pct, of a pool of two: that is only mentioned"),
}
_POOL = "(file LIKE '%/multiprocessing/pool.py' OR file LIKE '%/concurrent/futures/process.py')"
_PIPES = "regexp_matches(file, '/multiprocessing/(queues|connection|reduction|synchronize)\\.py$')"
_BIN_NS = 20_000_000
# A worker has a task while its loop (`worker`) has called something that is not about its pipes,
# whether it works or waits there. A task in C has no frame of its own, but a name. All times are of
# one clock; a wait may be one row of a second.
SQL = f"""
WITH pooled AS (SELECT DISTINCT stack FROM python.frame WHERE {_POOL}
                OR file LIKE '%/concurrent/futures/_base.py'),
frame AS (
  SELECT stack, depth, file, regexp_extract(func, '[^.]*$') AS name, {_POOL} AS is_pool
  FROM python.frame WHERE stack IN (FROM pooled)),
base AS (
  SELECT stack, MIN(depth) FILTER (is_pool AND name IN ('worker', '_process_worker')) AS loop,
         BOOL_OR(name IN ('wait', 'get', 'next', '__next__', 'result', 'result_or_cancel',
                          'as_completed')
           AND (is_pool OR file LIKE '%/concurrent/futures/_base.py')) AS asks
  FROM frame GROUP BY stack),
role AS (
  SELECT stack, ANY_VALUE(loop) IS NOT NULL AS is_worker,
         ANY_VALUE(loop) IS NULL AND ANY_VALUE(asks) AS asks,
         COALESCE(BOOL_OR(depth < loop AND {_PIPES}), FALSE) AS is_pipe,
         COALESCE(BOOL_OR(depth < loop AND NOT is_pool), FALSE) AS is_inside
  FROM frame JOIN base USING (stack) GROUP BY stack),
sample AS MATERIALIZED (
  SELECT {{piece}} AS piece, host, pid, thread, t_ns, wall_ns, idle, stack, is_worker, asks,
         is_worker AND NOT is_pipe AND (is_inside OR call IS NOT NULL) AS is_task
  FROM python.stack_sample JOIN role USING (stack) WHERE {{inside}}),
crew AS (
  SELECT piece, host, COUNT(DISTINCT pid) AS workers, COUNT(*) AS readings FROM sample
  WHERE is_worker GROUP BY piece, host),
moment AS (
  SELECT DISTINCT piece, host, pid,
         UNNEST(range((t_ns - wall_ns) // {_BIN_NS}, t_ns // {_BIN_NS} + 1)) AS bin
  FROM sample WHERE is_task),
together AS (
  SELECT piece, host, bin, COUNT(*) AS busy FROM moment GROUP BY ALL),
used AS (
  SELECT piece, host, AVG(busy) AS busy,
         100 * COUNT(*) FILTER (busy = 1) * {_BIN_NS} / ({{piece_s}} * 1e9) AS alone_pct
  FROM together GROUP BY piece, host),
place AS ({PLACE}),
asked AS (
  SELECT piece, host, pid, thread, file, lineno, func, SUM(wall_ns) AS wall_ns
  FROM sample JOIN place USING (stack) WHERE asks AND idle GROUP BY ALL),
asker AS (
  SELECT piece, host, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place,
         100 * MAX(wall_ns) / ({{piece_s}} * 1e9) AS asking_pct
  FROM asked GROUP BY piece, host)
SELECT piece, host, workers, readings, COALESCE(busy, 0) AS busy,
       COALESCE(alone_pct, 0) AS alone_pct, COALESCE(asking_pct, 0) AS asking_pct,
       place.file AS file, place.lineno AS lineno, place.func AS func
FROM crew LEFT JOIN used USING (piece, host) LEFT JOIN asker USING (piece, host)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        is_pair = row.workers == 2
        is_alone = row.workers >= limits.workers and (
            row.alone_pct >= limits.alone_pct and row.busy <= limits.together * row.workers
        )
        is_alone = is_alone or (is_pair and row.alone_pct >= limits.alone_of_two_pct)
        fired = is_alone and row.asking_pct >= limits.asking_pct
        evidence = {
            "workers": row.workers, "with_a_task_at_a_time": row.busy,
            "only_one_has_a_task_pct": row.alone_pct, "waiting_for_results_pct": row.asking_pct,
        }  # fmt: skip
        yield Verdict(
            row.piece, fired, evidence, severity="info" if is_pair else "warning",
            readings=row.readings, line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip
