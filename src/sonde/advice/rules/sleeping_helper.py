"""The main thread waits for another thread, which is asleep most of the time.

Why it hurts: while one sleeps and all others wait for it, nobody works; what is asked of that
thread lies there until it looks again.

What to do: if it sleeps between two looks for work, let it wait for the work (queue.get(),
Event.wait(), Condition.wait()), which wakes it at once; if the sleep sets a pace that is wanted,
all is well.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._code import PLACE, SUMS, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

MOST = "info"  # the sleep may be meant
UNLESS = ("deadlock", "hang", "lock_fight", "stalled_waits")
NEEDS = ("python.stack_sample.wait", "python.stack_sample.call")
OTHERWISE = "no thread but the main one sleeps"
LIMITS = {
    "waiting_pct": Limit(60, "of the main thread's time spent waiting for other threads"),
    "sleeping_pct": Limit(60, "of the other thread's time spent in time.sleep"),
    "others_pct": Limit(20, "of the time in which further threads do something else than wait"),
    "waits": Limit(5, "fewest waits of the main thread in a piece: it goes on each time"),
    "ratio": Limit(3, "times as many sleeps as waits, or the reverse: else they are unrelated"),
}
SQL = f"""
WITH sample AS (
  SELECT piece, host, pid, thread, stack, wall_ns, samples, rows,
         idle AND COALESCE(wait, '') = 'lock' AS is_locked,
         idle AND COALESCE(call, '') = 'time.sleep' AS is_asleep
  FROM ({SUMS})),
place AS ({PLACE}),
thread AS (
  SELECT piece, host, pid, thread, SUM(wall_ns) AS alive_ns, SUM(samples)::BIGINT AS readings,
         COALESCE(SUM(wall_ns) FILTER (is_locked), 0) AS locked_ns,
         COALESCE(SUM(wall_ns) FILTER (is_asleep), 0) AS asleep_ns,
         COALESCE(SUM(rows) FILTER (is_locked), 0) AS waits,
         COALESCE(SUM(rows) FILTER (is_asleep), 0) AS sleeps,
         ARG_MAX(stack, wall_ns) FILTER (is_asleep) AS stack
  FROM sample GROUP BY ALL),
main AS (FROM thread WHERE thread = pid AND alive_ns > 0),
helper AS (
  SELECT piece, host, pid, ARG_MAX(thread, asleep_ns) AS thread, MAX(asleep_ns) AS asleep_ns,
         ARG_MAX(alive_ns, asleep_ns) AS alive_ns, ARG_MAX(sleeps, asleep_ns) AS sleeps,
         ARG_MAX(stack, asleep_ns) AS stack,
         SUM(alive_ns - locked_ns) - ARG_MAX(alive_ns - locked_ns, asleep_ns) AS others_ns
  FROM thread WHERE thread <> pid GROUP BY ALL HAVING MAX(asleep_ns) > 0)
SELECT piece, pid, readings, waits, helper.sleeps AS sleeps,
       100 * locked_ns / main.alive_ns AS waiting_pct,
       100 * helper.asleep_ns / helper.alive_ns AS sleeping_pct,
       100 * others_ns / main.alive_ns AS others_pct, file, lineno, func
FROM main JOIN helper USING (piece, host, pid) LEFT JOIN place ON place.stack = helper.stack
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        fired = (
            row.waiting_pct >= limits.waiting_pct
            and row.sleeping_pct >= limits.sleeping_pct
            and row.others_pct <= limits.others_pct
            and row.waits >= limits.waits
            and row.waits <= limits.ratio * row.sleeps
            and row.sleeps <= limits.ratio * row.waits
        )
        evidence = {
            "main_thread_waits_pct": row.waiting_pct, "that_thread_sleeps_pct": row.sleeping_pct,
            "others_work_pct": row.others_pct,
        }  # fmt: skip
        yield Verdict(
            row.piece, fired, evidence, severity="info", readings=row.readings,
            who=f"pid {row.pid}", line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip
