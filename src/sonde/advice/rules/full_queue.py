"""A queue is full: whoever takes from it is slower than those who put in.

Why it hurts: those who put in wait for room, and all of them together are no faster than the one
who takes.

What to do: see what is done for each item there, and take that out or do it for many items at once;
let several threads or processes take from the queue. A longer queue only hides it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._code import PLACE, SUMS, in_python, show_place
from sonde.advice.verdict import LEVELS, Limit, Limits, Rows, Verdict
from sonde.analysis.wait_words import describe_wait

MOST = LEVELS[0]  # a program may be meant to read faster than it writes
UNLESS = ("deadlock", "hang")
NEEDS = ("python.stack_sample.wait", "python.frame.func")
OTHERWISE = "no thread waits for room in a queue"
IN_FILES = ("/queue.py",)
LIMITS = {
    "waiting_pct": Limit(40, "of a thread's time spent waiting for room in a queue"),
    "busy_pct": Limit(50, "of the time of a thread that takes from it: it has work"),
}
# Who puts waits within put; who takes has been seen in get, or is in the function that was.
SQL = f"""
WITH sample AS ({SUMS}),
edge AS (
  SELECT stack, MIN(depth) AS depth, ANY_VALUE(ending) AS ending FROM (
    SELECT stack, depth, string_split(func, '.')[-1] AS ending FROM python.frame
    WHERE {in_python("queue.py")} AND regexp_matches(func, '(^|[.])(put|get)$'))
  GROUP BY stack HAVING COUNT(DISTINCT ending) = 1),
asked AS (
  SELECT edge.stack, ending, file, lineno, func
  FROM edge JOIN python.frame AS f ON f.stack = edge.stack AND f.depth = edge.depth + 1),
thread AS (
  SELECT piece, host, pid, thread, SUM(wall_ns) AS alive_ns, SUM(samples)::BIGINT AS readings,
         COALESCE(SUM(wall_ns) FILTER (ending = 'put' AND idle), 0) AS put_ns,
         COALESCE(SUM(wall_ns) FILTER (ending = 'get' AND idle), 0) AS get_ns
  FROM sample LEFT JOIN edge USING (stack) GROUP BY ALL),
putting AS (
  SELECT piece, host, pid, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS put_place
  FROM (SELECT piece, host, pid, file, lineno, func, SUM(wall_ns) AS wall_ns
        FROM sample JOIN asked USING (stack) WHERE idle AND ending = 'put' GROUP BY ALL)
  GROUP BY ALL),
taker AS (SELECT DISTINCT file, func FROM asked WHERE ending = 'get'),
taking AS (
  SELECT DISTINCT stack FROM python.frame SEMI JOIN taker USING (file, func)),
place AS ({PLACE}),
work AS (
  SELECT piece, host, pid, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place,
         ARG_MAX(wait, wall_ns) AS wait, ARG_MAX(call, wall_ns) AS call,
         SUM(wall_ns) AS work_ns, MAX(threads) AS threads
  FROM (SELECT piece, host, pid, file, lineno, func, SUM(wall_ns) AS wall_ns,
               ARG_MAX(CASE WHEN idle THEN wait END, wall_ns) AS wait,
               ARG_MAX(call, wall_ns) AS call, COUNT(DISTINCT thread) AS threads
        FROM sample JOIN place USING (stack)
        WHERE stack IN (FROM taking) AND stack NOT IN (SELECT stack FROM edge) GROUP BY ALL)
  GROUP BY ALL),
takers AS (
  SELECT piece, host, pid, COUNT(DISTINCT thread) AS takers, SUM(alive_ns) AS taking_ns,
         SUM(get_ns) AS rest_ns
  FROM thread SEMI JOIN (
    SELECT host, pid, thread FROM sample WHERE stack IN (FROM taking)) USING (host, pid, thread)
  GROUP BY ALL),
putter AS (
  SELECT piece, host, pid, SUM(readings)::BIGINT AS readings,
         COUNT(*) FILTER (100 * put_ns >= {{waiting_pct}} * alive_ns) AS putters,
         MAX(100 * put_ns / alive_ns) AS waiting_pct
  FROM thread WHERE alive_ns > 0 GROUP BY ALL)
SELECT piece, pid, readings, putters, waiting_pct, takers,
       100 * (1 - rest_ns / GREATEST(taking_ns, 1)) AS busy_pct,
       put_place, place, wait, call
FROM putter LEFT JOIN takers USING (piece, host, pid) LEFT JOIN work USING (piece, host, pid)
LEFT JOIN putting USING (piece, host, pid)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        fired = row.putters > 0 and (row.takers is None or row.busy_pct >= limits.busy_pct)
        yield Verdict(
            row.piece, fired, _tell(row) if fired else {}, severity="info", readings=row.readings,
            who=f"pid {row.pid}",
            line=_show(row.place) or _show(row.put_place) if fired else "",
        )  # fmt: skip


def _tell(row: Any) -> dict[str, float | str | None]:
    evidence: dict[str, float | str | None] = {
        "threads_that_put": row.putters, "they_wait_for_room_pct": row.waiting_pct,
    }  # fmt: skip
    if row.takers is not None:
        evidence["threads_that_take"] = row.takers
        evidence["those_have_work_pct"] = row.busy_pct
    if row.place is not None:
        waits = describe_wait((), row.wait) if row.wait else ""
        evidence["mostly"] = f"waiting for {waits}" if waits else row.call or "at work"
    if row.put_place is not None:
        evidence["waiting_at"] = _show(row.put_place)
    return evidence


def _show(place: Any) -> str:
    return "" if place is None else show_place(place["file"], place["lineno"], place["func"])
