"""The job hangs: no step has ended for far longer than usual.

Why it hurts: a job that waits for ever costs as much as one that works, and nobody notices.

What to do: see where every thread and rank stands (`sonde stacks TARGET`); look first at a
rank whose line is not that of the others. If they stand in a collective, one rank has not reached
it: see what that rank does.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._code import PLACE, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

DANGER = True
NEEDS = ("python.torch_step.dur_ns", "python.stack_sample.stack", "sonde.session.state")
LIMITS = {
    "least_s": Limit(300, "without a step that is a hang"),
    "times": Limit(10, "times the usual length of a step, if that is longer"),
    "same_pct": Limit(90, "of that time in which the main thread stood in one place"),
}
# Who ended by himself did not hang. A program that has ended its training and waits for somebody (a
# notebook, a server) stands in its event loop.
SQL = f"""
WITH last AS (
  SELECT host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps, MEDIAN(dur_ns) / 1e9 AS usual_s,
         MAX(t_ns + dur_ns) AS end_ns, MAX(step) AS step
  FROM python.torch_step WHERE ended_by <> 'end' AND (host, pid) NOT IN (
    SELECT (host, pid) FROM sonde.session WHERE state = 'ended')
  GROUP BY 1, 2),
loops AS (
  SELECT stack FROM python.frame WHERE func LIKE '%run_forever' OR file LIKE '%/ipykernel/%'),
place AS ({PLACE}),
after AS (
  SELECT piece, host, pid, rank, steps, usual_s, step, end_ns, t_ns, wall_ns, idle, stack
  FROM (SELECT {{piece}} AS piece, host, pid, t_ns, wall_ns, idle, stack FROM python.stack_sample
        WHERE {{inside}} AND thread = pid AND stack NOT IN (SELECT stack FROM loops))
  JOIN last USING (host, pid) WHERE t_ns > end_ns),
stood AS (
  SELECT host, pid, file, lineno, func, SUM(wall_ns) AS wall_ns
  FROM after LEFT JOIN place USING (stack) GROUP BY ALL),
top AS (
  SELECT host, pid, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place,
         100 * MAX(wall_ns) / SUM(wall_ns) AS same_pct
  FROM stood GROUP BY 1, 2),
silent AS (
  SELECT host, pid, (MAX(t_ns) - ANY_VALUE(end_ns)) / 1e9 AS silent_s FROM after GROUP BY 1, 2)
SELECT piece, after.pid, after.rank, ANY_VALUE(after.steps) AS steps, ANY_VALUE(usual_s) AS usual_s,
       ANY_VALUE(step) AS step, ANY_VALUE(silent_s) AS silent_s, ANY_VALUE(same_pct) AS same_pct,
       100 * SUM(wall_ns) FILTER (idle) / SUM(wall_ns) AS waiting_pct,
       ANY_VALUE(place.file) AS file, ANY_VALUE(place.lineno) AS lineno,
       ANY_VALUE(place.func) AS func
FROM after JOIN silent USING (host, pid) JOIN top USING (host, pid)
GROUP BY piece, after.host, after.pid, after.rank
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        longest_s = max(limits.least_s, limits.times * row.usual_s)
        fired = row.silent_s > longest_s and row.same_pct >= limits.same_pct
        evidence = {
            "without_step_ns": 1e9 * row.silent_s, "usual_step_ns": 1e9 * row.usual_s,
            "last_step": row.step,
            "same_place_pct": row.same_pct, "waiting_pct": row.waiting_pct,
        }  # fmt: skip
        yield Verdict(
            row.piece, fired, evidence, severity="critical", readings=row.steps,
            who=f"pid {row.pid}" if row.rank is None else f"rank {row.rank}",
            line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip
