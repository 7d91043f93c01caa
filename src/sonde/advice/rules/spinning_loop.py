"""The event loop turns round and round, and hardly does anything.

Why it hurts: a callback that leaves what it was called for undone is called again at once, for
ever: a processor is used up, and all other callbacks of the loop are late.

What to do: see the callback. One that was registered with add_reader must read until there is no
more, and one of add_writer be removed when there is nothing to write; at the end of a connection
(`recv` gives no bytes) remove it and close the socket. A task that asks again and again with
`asyncio.sleep(0)` waits better for an Event, a Condition, a Queue or a Future.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._code import PLACE, SUMS, in_python, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

MOST = "warning"
UNLESS = ("loop_blocked", "hang")
NEEDS = ("python.event_loop.callbacks", "python.stack_sample.stack")
OTHERWISE = "no event loop of asyncio was seen"
IN_FILES = ("/asyncio/base_events.py",)
ONLY_IF = ("python.event_loop", "SUM(callbacks) >= {callbacks}")
LIMITS = {
    "idle_pct": Limit(5, "of the time in which the loop waits for something to happen, at most"),
    "turning_pct": Limit(60, "of its work that the loop itself takes, and none of its callbacks"),
    "callbacks": Limit(5000, "for each second in which it had a processor, at least"),
}
# The loop's own work is what its files are at, and nothing that they call but the clock and the
# selector. Which callback is called is told by the few samples that find one.
_LOOP = " OR ".join(
    in_python(file) for file in ("asyncio/base_events.py", "asyncio/events.py", "selectors.py")
)
SQL = f"""
WITH loop AS (
  SELECT {{piece}} AS piece, host, pid, thread, SUM(wall_ns)::DOUBLE AS wall_ns,
         100 * SUM(idle_ns) / SUM(wall_ns)::DOUBLE AS idle_pct, SUM(callbacks)::DOUBLE AS callbacks
  FROM python.event_loop WHERE {{inside}} GROUP BY ALL HAVING SUM(wall_ns) > 0),
turning AS (SELECT stack FROM python.frame WHERE depth = 0 AND ({_LOOP})),
run AS (
  SELECT stack, MIN(depth) AS depth FROM python.frame
  WHERE {in_python("asyncio/events.py")} AND ends_with(func, '_run') GROUP BY stack),
place AS ({PLACE}),
sample AS (
  SELECT piece, host, pid, thread, stack, rows, worked_ns FROM ({SUMS}) SEMI JOIN loop
  USING (piece, host, pid, thread) WHERE NOT idle),
share AS (
  SELECT piece, host, pid, thread, SUM(rows)::BIGINT AS readings, SUM(worked_ns) AS worked_ns,
         100 * COALESCE(SUM(worked_ns) FILTER (stack IN (FROM turning)), 0)
           / SUM(worked_ns)::DOUBLE AS turning_pct
  FROM sample GROUP BY ALL HAVING SUM(worked_ns) > 0),
called AS (
  SELECT piece, host, pid, thread, ARG_MAX(struct_pack(file, lineno, func), worked_ns) AS place
  FROM (SELECT piece, host, pid, thread, file, lineno, func, SUM(worked_ns) AS worked_ns
        FROM sample JOIN run USING (stack) JOIN place USING (stack)
        WHERE own_depth < run.depth GROUP BY ALL)
  GROUP BY ALL)
SELECT piece, pid, readings, idle_pct, callbacks, turning_pct, wall_ns,
       worked_ns::DOUBLE AS worked_ns, place.file AS file, place.lineno AS lineno,
       place.func AS func
FROM loop JOIN share USING (piece, host, pid, thread)
LEFT JOIN called USING (piece, host, pid, thread)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        a_second = 1e9 * row.callbacks / row.worked_ns
        fired = (
            row.idle_pct <= limits.idle_pct
            and row.turning_pct >= limits.turning_pct
            and a_second >= limits.callbacks
        )
        evidence = {
            "callbacks_a_second": 1e9 * row.callbacks / row.wall_ns, "loop_rests_pct": row.idle_pct,
            "loop_itself_pct": row.turning_pct,
        }  # fmt: skip
        name = f", over and over for {row.func}" if row.func else ""
        yield Verdict(
            row.piece, fired, evidence, severity="warning", readings=row.readings,
            who=f"pid {row.pid}", line=show_place(row.file, row.lineno, row.func),
            title=f"The event loop turns round and round{name}, and hardly does anything",
        )  # fmt: skip
