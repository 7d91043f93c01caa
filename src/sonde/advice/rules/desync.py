"""Ranks do not call the same collectives.

Why it hurts: a collective waits until every rank of its group has called it. One that calls
another, or none, stops the job for ever, or mixes up its numbers.

What to do: look for a branch around the collective that not all ranks take: an exception that is
caught, a last batch that one rank does not have, `if rank == 0`. `sonde stacks JOB` shows where
each rank stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._code import PLACE, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict, group
from sonde.analysis.wait_words import describe_wait
from sonde.words import show_duration

FIRST = DANGER = True
COMPARES = True
NEEDS = ("python.collective.seq", "python.stack_sample.wall_ns", "sonde.session.state")
LIMITS = {"late_s": Limit(5, "for which ranks wait in a collective that another has not called")}
# The rank that has not come may have ended: how long the others wait is told by their own samples.
# A rank that waits since the group was made could not yet tell who is in it; others can.
SQL = f"""
WITH call AS (
  SELECT {{piece}} AS piece, host, pid, rank, group_name, seq, op, state, t_ns, ts,
         COALESCE(group_ranks, CASE WHEN MIN(group_ranks) OVER named = MAX(group_ranks) OVER named
                                    THEN MIN(group_ranks) OVER named END) AS group_ranks
  FROM python.collective WHERE {{to_end}} AND seq IS NOT NULL AND rank IS NOT NULL
  WINDOW named AS (PARTITION BY group_name)),
sample AS (
  SELECT host, pid, rank, MAX(ts) AS ts, ARG_MAX(stack, t_ns) AS stack, ARG_MAX(idle, t_ns) AS idle,
         ARG_MAX(wait, t_ns) AS wait
  FROM python.stack_sample WHERE {{to_end}} AND thread = pid GROUP BY ALL),
clash AS (
  SELECT group_name, group_ranks, seq, COUNT(DISTINCT op) AS ops,
         STRING_AGG(DISTINCT op, ', ' ORDER BY op) AS op
  FROM call GROUP BY group_name, group_ranks, seq HAVING COUNT(DISTINCT op) > 1),
mixed AS (
  SELECT call.piece, clash.group_name, clash.seq, ops, clash.op, call.rank, NULL AS waited_s,
         call.op AS own_op, COUNT(*) OVER (PARTITION BY clash.group_name, clash.group_ranks,
                                           clash.seq, call.op) AS alike
  FROM clash JOIN call ON call.seq = clash.seq
    AND call.group_name IS NOT DISTINCT FROM clash.group_name
    AND call.group_ranks IS NOT DISTINCT FROM clash.group_ranks),
reached AS (
  SELECT group_name, group_ranks, rank, MAX(seq) AS seq FROM call GROUP BY ALL),
waiting AS (
  SELECT call.*, (epoch_us(sample.ts) - epoch_us(call.ts)) / 1e6 AS waited_s
  FROM call JOIN sample USING (host, pid, rank)
  WHERE state IN ('running', 'timeout')
    AND epoch_us(sample.ts) - epoch_us(call.ts) >= {{late_s}} * 1e6),
-- What a rank has forked, as to load data, has its number, and calls nothing.
member AS (
  SELECT rank, host, pid, state, exit_reason FROM sonde.session
  LEFT JOIN (SELECT DISTINCT host, pid, TRUE AS has_called FROM call) USING (host, pid)
  WHERE rank IS NOT NULL
  QUALIFY ROW_NUMBER() OVER (PARTITION BY rank ORDER BY COALESCE(has_called, FALSE) DESC,
                             parent IS NULL DESC, start_wall_ns DESC) = 1),
behind AS (
  SELECT w.piece, w.group_name, w.seq, 1 AS ops, w.op, member.rank, MAX(w.waited_s) AS waited_s
  FROM waiting AS w JOIN member ON w.group_ranks IS NULL
    OR list_contains(string_split(w.group_ranks, ','), member.rank::VARCHAR)
  LEFT JOIN reached AS r ON r.rank = member.rank AND r.group_name IS NOT DISTINCT FROM w.group_name
    AND r.group_ranks IS NOT DISTINCT FROM w.group_ranks
  WHERE COALESCE(r.seq, 0) < w.seq GROUP BY ALL),
first AS (SELECT * FROM behind QUALIFY seq = MIN(seq) OVER (PARTITION BY group_name, rank)),
place AS ({PLACE})
SELECT {{last_piece}} AS piece, calls, group_name, seq, ops, op, p.rank, waited_s, own_op,
       state, exit_reason, idle, wait, file, lineno, func, leaf_file, leaf_func
FROM (SELECT COUNT(*) AS calls FROM call)
LEFT JOIN (SELECT * FROM mixed UNION ALL SELECT *, NULL, NULL FROM first) AS p ON TRUE
LEFT JOIN member ON member.rank = p.rank
LEFT JOIN sample ON sample.rank = p.rank AND sample.host = member.host AND sample.pid = member.pid
LEFT JOIN place USING (stack) WHERE calls > 0
ORDER BY p.ops DESC, p.seq, p.alike, p.rank
"""


def judge(rows: Rows, _limits: Limits) -> Iterator[Verdict]:
    for piece, found in group(rows):
        first = found[0]
        if first.seq is None:
            yield Verdict(piece, False)
            continue
        late = [row for row in found if row.rank is not None and row.seq == first.seq]
        evidence = {"group": first.group_name, "seq": first.seq, "op": first.op}
        title = f"Ranks call different collectives: {first.op}"
        if first.ops > 1:
            late = [row for row in late if row.ops > 1]
            evidence["what"] = "; ".join(
                f"rank {row.rank} calls {row.own_op}"
                + (f" at {show_place(row.file, row.lineno, row.func)}" if row.file else "")
                for row in late[:8]
            )
        elif late:
            title = _name_late(late)
            evidence |= {"waited_ns": 1e9 * first.waited_s, "missing": len(late),
                         "what": "; ".join(map(_describe, late[:8]))}  # fmt: skip
        # One is enough to be sure, however few calls there were.
        yield Verdict(
            piece, True, evidence, severity="critical", readings=20, title=title,
            who=f"rank {late[0].rank}" if late else "",
            line=show_place(late[0].file, late[0].lineno, late[0].func) if late else "",
        )  # fmt: skip


def _name_late(late: list[Any]) -> str:
    ranks, first = ", ".join(str(row.rank) for row in late[:8]), late[0]
    since = show_duration(1e9 * first.waited_s)
    if len(late) > 1:
        return f"Ranks {ranks} have not called {first.op}, in which others have waited for {since}"
    return f"Rank {ranks} has not called {first.op}, in which others have waited for {since}"


def _describe(row: Any) -> str:
    """Return where a rank is that has not come."""
    if row.state in ("ended", "killed"):
        return f"rank {row.rank} {row.exit_reason or row.state}"
    place = show_place(row.file, row.lineno, row.func) or "an unknown line"
    if not row.idle:
        return f"rank {row.rank} works at {place}"
    leaf = [(row.leaf_func, row.leaf_file)] if row.leaf_file else []
    return f"rank {row.rank} waits for {describe_wait(leaf, row.wait) or 'something'} at {place}"
