"""A pool of processes spends more on handing work over than on the work.

Why it hurts: each task and each result is pickled, sent through a pipe and unpickled; the parent
does that for all of its workers, so that more of them do not help.

What to do: give each task more to do (a larger `chunksize` of map and imap, one task for many
items), and send less with it: paths, numbers or small pieces instead of large objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._code import PLACE, SUMS, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

MOST = "warning"
UNLESS = ("deadlock", "hang")
NEEDS = ("python.stack_sample.call", "python.frame.func")
OTHERWISE = "no pool of processes was seen"
IN_FILES = ("/multiprocessing/pool.py", "/concurrent/futures/process.py")
LIMITS = {
    "moving_pct": Limit(50, "of the time of tasks and of handing them over spent on the latter"),
    "least_pct": Limit(15, "of a processor that handing over uses, at least"),
    "pickling_pct": Limit(50, "of that spent on pickling, from which what is sent is large"),
    "rate_bytes": Limit(5e7, "sent in a second of it, from which what is sent is large as well"),
}
_POOL = "(file LIKE '%/multiprocessing/pool.py' OR file LIKE '%/concurrent/futures/process.py')"
_PIPES = "regexp_matches(file, '/multiprocessing/(queues|connection|reduction|synchronize)\\.py$')"
# A worker's stack has the frames of its parent below those of the pool's loop (`worker`), if it was
# forked. A task is what that loop calls, apart from the pipes; a task in C has no frame of its own.
# What goes through a pipe is written by one process and read by another.
SQL = f"""
WITH sample AS (
  SELECT piece, host, pid, stack, call, SUM(wall_ns) AS wall_ns,
         SUM(cpu_ns) AS cpu_ns, COALESCE(SUM(wall_ns) FILTER (idle), 0) AS idle_ns
  FROM ({SUMS}) GROUP BY ALL),
pooled AS (
  SELECT DISTINCT stack FROM python.frame WHERE {_POOL} OR file LIKE '%/multiprocessing/queues.py'),
frame AS (
  SELECT stack, depth, func, file, regexp_extract(func, '[^.]*$') AS name, {_POOL} AS is_pool
  FROM python.frame WHERE stack IN (SELECT stack FROM pooled)),
base AS (
  SELECT stack, MIN(depth) FILTER (is_pool AND name IN ('worker', '_process_worker')) AS loop,
         COALESCE(BOOL_OR(is_pool AND name IN ('_handle_tasks', '_handle_results', 'run', 'submit')
           OR name = '_feed'), FALSE) AS moves
  FROM frame GROUP BY stack),
role AS (
  SELECT stack, ANY_VALUE(loop) AS loop, ANY_VALUE(moves) AS moves,
         COALESCE(BOOL_OR(depth < loop AND {_PIPES}), FALSE) AS is_pipe,
         COALESCE(BOOL_OR(depth < loop AND NOT is_pool), FALSE) AS is_inside
  FROM frame JOIN base USING (stack) GROUP BY stack),
part AS (
  SELECT piece, host, stack, call, loop IS NOT NULL AS is_worker, wall_ns, cpu_ns, idle_ns,
         loop IS NOT NULL AND NOT is_pipe AND (is_inside OR call IS NOT NULL) AS is_task,
         CASE WHEN loop IS NULL THEN moves ELSE is_pipe OR NOT is_inside AND call IS NULL END
           AS is_moving
  FROM sample JOIN role USING (stack)),
place AS ({PLACE}),
top AS (
  SELECT piece, host, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place
  FROM (SELECT piece, host, file, lineno, func, SUM(wall_ns) AS wall_ns
        FROM part JOIN place USING (stack) WHERE NOT is_worker GROUP BY ALL) GROUP BY 1, 2),
total AS (
  SELECT piece, host, COALESCE(SUM(cpu_ns + idle_ns) FILTER (is_task), 0)::DOUBLE AS task_ns,
         COALESCE(SUM(cpu_ns) FILTER (is_moving), 0)::DOUBLE AS moving_ns,
         COALESCE(SUM(cpu_ns) FILTER (is_moving AND (is_worker AND call IS NULL
           OR call LIKE '_pickle.%')), 0)::DOUBLE AS pickling_ns, COUNT(*) AS readings
  FROM part GROUP BY 1, 2 HAVING BOOL_OR(is_worker)),
moved AS (
  SELECT {{piece}} AS piece, host,
         LEAST(SUM(asked_read_bytes), SUM(asked_write_bytes))::DOUBLE AS moved_bytes
  FROM system.process WHERE {{inside}} GROUP BY 1, 2)
SELECT piece, host, task_ns, moving_ns, pickling_ns, readings, {{piece_s}}::DOUBLE AS piece_s,
       moved_bytes, place.file AS file, place.lineno AS lineno, place.func AS func
FROM total LEFT JOIN top USING (piece, host) LEFT JOIN moved USING (piece, host)
"""
_LARGE = (
    "What is sent to and from a pool of processes is large: moving it takes more than the work",
    "a bound method or a partial is sent with its whole object, for each task: let workers load "
    "the data themselves or inherit it (an initializer, a global before the fork), send keys or "
    "paths, return sums instead of tables, or use multiprocessing.shared_memory",
)
_SMALL = (
    "The tasks of a pool of processes are too small: handing them over takes more than the work",
    "give map and imap a larger chunksize (hundreds of such items), or let one task do many items; "
    "what takes microseconds is faster without a pool",
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        moving_pct = 100 * row.moving_ns / max(1.0, row.moving_ns + row.task_ns)
        used_pct = row.moving_ns / row.piece_s / 1e7
        pickling_pct = 100 * row.pickling_ns / max(1.0, row.moving_ns)
        fired = moving_pct >= limits.moving_pct and used_pct >= limits.least_pct
        rate_bytes = (row.moved_bytes or 0.0) / max(1e-9, row.moving_ns / 1e9)
        is_large = pickling_pct >= limits.pickling_pct or rate_bytes >= limits.rate_bytes
        yield _judge(row, fired, is_large, {
            "handing_over_pct": moving_pct, "of_that_pickling_pct": pickling_pct,
            "processor_used_for_it_pct": used_pct, "sent_bytes": row.moved_bytes,
        })  # fmt: skip


def _judge(row: Any, fired: bool, is_large: bool, evidence: dict[str, float | None]) -> Verdict:
    title, todo = _LARGE if is_large else _SMALL
    return Verdict(
        row.piece, fired, evidence, severity="warning", readings=row.readings, title=title,
        todo=todo, line=show_place(row.file, row.lineno, row.func),
    )  # fmt: skip
