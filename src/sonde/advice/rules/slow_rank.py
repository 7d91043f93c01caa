"""One rank is slower than the others, and they wait for it.

Why it hurts: in each step all ranks wait for the last one, so the whole job is as slow as that one.

What to do: look at that rank alone (`sonde advise` with its pid): its data, its machine (clocks,
temperature, other programs on it), its part of the model. If it is slow from the first step to the
last, whatever the data, replace the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from sonde.advice.rules._code import PLACE, describe_more, show_place
from sonde.advice.rules._ranks import COVERED
from sonde.advice.verdict import Limit, Limits, Rows, Verdict, group
from sonde.words import show_ranges

COMPARES = True
CROWD = "info"
NEEDS = ("python.collective.dur_ns", "python.torch_step.dur_ns")
LIMITS = {
    "gap_pct": Limit(10, "of a step that the others wait for the slowest rank"),
    "cause_pct": Limit(80, "of that time explained by one part of the step"),
    "line_pct": Limit(50, "of that time that the rank is at one line for longer than the others"),
    "times": Limit(1.15, "times as long at every line: then it is the machine"),
}
# The rank that comes last waits least: it is the one with the least time in collectives. In
# backward passes, where collectives are not seen. What a thread did while it was not idle is work,
# or waiting for a processor, in the proportion of the two clocks of the kernel.
# Only the slowest rank has `lines`, with the median of all others at each: the lines of a thousand
# ranks would be gigabytes. Those of the others that are `missing` in `found` have 0 there.
SQL = f"""
WITH step AS (
  SELECT {{piece}} AS piece, host, pid, rank, step, dur_ns, input_wait_ns, host_to_device_ns,
         forward_ns, backward_ns, optimizer_ns, other_ns
  FROM python.torch_step
  WHERE {{inside}} AND {{main_step}} AND ended_by <> 'end' AND rank IS NOT NULL),
shared AS (
  SELECT piece, step FROM step GROUP BY piece, step
  HAVING COUNT(DISTINCT rank) = (SELECT COUNT(DISTINCT rank) FROM step)),
wait AS (SELECT rank, step, s AS wait_s FROM ({COVERED})),
sample AS (
  SELECT {{piece}} AS piece, rank, stack, CASE WHEN idle THEN COALESCE(wait, '') END AS kind, call,
         SUM(wall_ns) / 1e9 AS wall_s,
         SUM(CASE WHEN idle OR cpu_ns + queue_ns = 0 THEN 0
                  ELSE wall_ns * queue_ns / (cpu_ns + queue_ns) END) / 1e9 AS queue_s
  FROM python.stack_sample SEMI JOIN step USING (host, pid)
  WHERE {{inside}} AND thread = pid AND rank IS NOT NULL GROUP BY ALL),
queue AS (SELECT piece, rank, SUM(queue_s) AS queue_s FROM sample GROUP BY 1, 2),
place AS ({PLACE}),
spent AS (
  SELECT piece, rank, file, lineno, func, kind, ARG_MAX(call, wall_s) AS call,
         SUM(wall_s - COALESCE(queue_s, 0)) AS s
  FROM sample JOIN place USING (stack) GROUP BY ALL),
each AS MATERIALIZED (
  SELECT s.piece, s.rank, ANY_VALUE(s.host) AS host, ANY_VALUE(s.pid) AS pid, COUNT(*) AS steps,
         AVG(dur_ns) / 1e9 AS step_s, AVG(wait_s) AS wait_s, AVG(backward_ns) / 1e9 AS backward,
         AVG(input_wait_ns) / 1e9 AS input_wait, AVG(host_to_device_ns) / 1e9 AS host_to_device,
         AVG(forward_ns) / 1e9 AS forward, AVG(optimizer_ns) / 1e9 AS optimizer,
         AVG(other_ns) / 1e9 AS other, ANY_VALUE(queue_s) AS queue_s
  FROM step AS s JOIN shared USING (piece, step)
  LEFT JOIN wait ON wait.rank = s.rank AND wait.step = s.step
  LEFT JOIN queue ON queue.piece = s.piece AND queue.rank = s.rank
  GROUP BY s.piece, s.rank),
placed AS (
  SELECT piece, rank, steps, COUNT(*) OVER piece - 1 AS others,
         CASE WHEN BOOL_AND(wait_s IS NOT NULL) OVER piece THEN wait_s ELSE backward END AS waited
  FROM each WINDOW piece AS (PARTITION BY piece)),
slowest AS (
  SELECT * FROM placed QUALIFY ROW_NUMBER() OVER (PARTITION BY piece ORDER BY waited, rank) = 1),
own AS (SELECT spent.*, steps, others FROM spent JOIN slowest USING (piece, rank)),
theirs AS (
  SELECT piece, file, lineno, func, kind, LIST(s / steps ORDER BY s / steps) AS found
  FROM spent JOIN each USING (piece, rank) ANTI JOIN slowest USING (piece, rank) GROUP BY ALL),
compared AS (
  SELECT own.*, others - COALESCE(LEN(found), 0) AS missing, found
  FROM own LEFT JOIN theirs ON own.piece = theirs.piece AND own.file = theirs.file
    AND own.lineno IS NOT DISTINCT FROM theirs.lineno AND own.func = theirs.func
    AND own.kind IS NOT DISTINCT FROM theirs.kind),
line AS (
  SELECT piece, rank, LIST(struct_pack(file, lineno, func, kind, call, s := s / steps, usual_s :=
    (CASE WHEN (others - 1) // 2 < missing THEN 0 ELSE found[(others - 1) // 2 - missing + 1] END
     + CASE WHEN others // 2 < missing THEN 0 ELSE found[others // 2 - missing + 1] END) / 2)
    ORDER BY s DESC) AS lines
  FROM compared GROUP BY 1, 2)
SELECT each.*, lines FROM each LEFT JOIN line USING (piece, rank)
"""
_NEAR = 0.2  # of the gap: ranks that are so near to the slowest are slow as well
_PARTS = {"input_wait": "waits for data", "host_to_device": "moves its batches",
          "forward": "is in the model", "other": "does other things",
          "optimizer": "is in its optimizer"}  # fmt: skip


class _Difference(NamedTuple):
    """What the slow rank does differently: words for the title, and where."""

    what: str = ""
    todo: str = ""
    line: str = ""
    excess_s: float | None = None  # in each step
    times: float | None = None  # as long as the others, at every line


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for piece, ranks in group(rows):
        if len(ranks) < 2:
            continue
        seen = all(row.wait_s is not None for row in ranks)
        waits = sorted(((row.wait_s if seen else row.backward), row.rank, row) for row in ranks)
        culprit, victim = waits[0], waits[len(waits) // 2]  # the upper median
        gap_s = victim[0] - culprit[0]
        gap_pct = 100 * gap_s / victim[2].step_s
        evidence = {
            "waiting_of_others_pct": gap_pct, "step_ns": 1e9 * victim[2].step_s,
            "ranks": len(ranks), "own_wait_ns": 1e9 * culprit[0],
            "wait_of_others_ns": 1e9 * victim[0], "host": culprit[2].host,
        }  # fmt: skip
        fired = gap_pct >= limits.gap_pct
        if not fired:
            yield Verdict(piece, False, evidence, lost_pct=gap_pct, readings=culprit[2].steps)
            continue
        others = [row for row in ranks if row is not culprit[2]]
        found = _find_difference(culprit[2], others, gap_s, limits)
        what = found.what or _name_part(culprit[2], victim[2], gap_s, limits)
        if found.excess_s is not None:
            evidence["longer_there_ns"] = 1e9 * found.excess_s
        if found.times is not None:
            evidence["times_as_long"] = found.times
        who, title = _name_slow(
            [one for one in waits if one[0] <= culprit[0] + _NEAR * gap_s], ranks
        )
        yield Verdict(
            piece, True, evidence, lost_pct=gap_pct, readings=culprit[2].steps,
            who=who, title=f"{title}: it {what}" if what else title,
            todo=found.todo, line=found.line,
        )  # fmt: skip


def _name_slow(slow: Sequence[Any], ranks: Sequence[Any]) -> tuple[str, str]:
    """Return who is slow, and a sentence about it: a rank, or a host all of whose ranks are."""
    host, numbers = slow[0][2].host, sorted(rank for _wait, rank, _row in slow)
    there = sorted(row.rank for row in ranks if row.host == host)
    if len(there) > 1 and numbers == there and len(there) < len(ranks):
        title = f"Host {host} is slower than the others, and they wait for its ranks"
        return f"host {host}", f"{title} {show_ranges(there)}"
    return (
        f"rank {slow[0][1]}",
        f"Rank {slow[0][1]} is slower than the others, and they wait for it",
    )


def _name_part(slow: Any, other: Any, gap_s: float, limits: Limits) -> str:
    """The part of the step that makes the difference, if one does."""
    excess = {part: getattr(slow, part) - getattr(other, part) for part in _PARTS}
    worst = max(excess, key=lambda part: excess[part])
    if 100 * excess[worst] < limits.cause_pct * gap_s:
        return ""
    return f"{_PARTS[worst]} for longer"


def _find_difference(slow: Any, others: Sequence[Any], gap_s: float, limits: Limits) -> _Difference:
    """Compare where the slow rank is in a step with where the others are."""
    enough_s = limits.line_pct / 100 * gap_s
    queues = [(row.queue_s or 0.0) / row.steps for row in others]
    queue_s = (slow.queue_s or 0.0) / slow.steps - median(queues)
    if queue_s >= enough_s:
        return _Difference(
            "waits for a processor",
            f"see what else runs on {slow.host} (`top`), whether the rank is bound to processors "
            "that others use, and how many threads and workers it has; the others do not wait",
            excess_s=queue_s,
        )
    own, usual = _sum_lines(slow, "s"), _sum_lines(slow, "usual_s")
    times = _find_slowdown(own, usual, slow.step_s)
    if times >= limits.times:
        return _Difference(
            "takes longer for everything",
            f"compare {slow.host} with the machines of the others (clocks, temperature, other "
            "programs on it), and the size of this rank's batches",
            times=times,
        )
    worst = max(own, key=lambda key: own[key] - usual[key], default=None)
    if worst is None or own[worst] - usual[worst] < enough_s:
        return _Difference()
    return _describe_line(slow, worst, own[worst] - usual[worst])


def _sum_lines(row: Any, whose: str) -> dict[tuple[str, int, str, str | None], float]:
    """Return the seconds of a step at each line, by what it waits for."""
    lines = row.lines or ()
    return {(one["file"], one["lineno"], one["func"], one["kind"]): one[whose]
            for one in lines}  # fmt: skip


def _find_slowdown(own: dict[Any, float], usual: dict[Any, float], step_s: float) -> float:
    """Return how many times as long the rank works, if it does so at each of several lines that
    matter; else 0."""
    ratios = [own[key] / usual[key] for key in own if key[3] is None and usual[key] > 0.05 * step_s]
    is_even = len(ratios) >= 3 and max(ratios) < 1.3 * min(ratios)
    return median(ratios) if is_even else 0.0


def _describe_line(
    slow: Any, key: tuple[str, int, str, str | None], excess_s: float
) -> _Difference:
    file, lineno, func, kind = key
    calls = [one["call"] for one in slow.lines
             if (one["file"], one["lineno"], one["kind"]) == (file, lineno, kind)]  # fmt: skip
    what = describe_more(func, kind, calls[0] if calls else None)
    todo = (
        f"rank {slow.rank} is longer at this line than the others: see what it is given to do "
        f"there (its batch, its shard, its files), and `sonde tree {slow.pid}`"
    )
    return _Difference(what, todo, show_place(file, lineno, func), excess_s)
