"""One rank is slower than the others, and they wait for it.

Why it hurts: in each step all ranks wait for the last one, so the whole job is as slow as that one.

What to do: look at that rank alone (`sonde advise` with its pid): its data, its machine (clocks,
temperature, other programs on it), its part of the model. If it is slow from the first step to the
last, whatever the data, replace the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._ranks import COVERED
from sonde.advice.verdict import Limit, Limits, Rows, Verdict, group

NEEDS = ("python.collective.dur_ns", "python.torch_step.dur_ns")
LIMITS = {
    "gap_pct": Limit(10, "of a step that the others wait for the slowest rank"),
    "cause_pct": Limit(80, "of that time explained by one part of the step"),
}
# The rank that comes last waits least: it is the one with the least time in collectives. In
# backward passes, where collectives are not seen.
SQL = f"""
WITH step AS (
  SELECT {{piece}} AS piece, host, rank, step, dur_ns, input_wait_ns, host_to_device_ns, forward_ns,
         backward_ns, optimizer_ns, other_ns
  FROM python.torch_step
  WHERE {{inside}} AND {{main_step}} AND ended_by <> 'end' AND rank IS NOT NULL),
shared AS (
  SELECT piece, step FROM step GROUP BY piece, step
  HAVING COUNT(DISTINCT rank) = (SELECT COUNT(DISTINCT rank) FROM step)),
wait AS (SELECT rank, step, s AS wait_s FROM ({COVERED}))
SELECT s.piece, s.rank, ANY_VALUE(s.host) AS host, COUNT(*) AS steps, AVG(dur_ns) / 1e9 AS step_s,
       AVG(wait_s) AS wait_s, AVG(backward_ns) / 1e9 AS backward,
       AVG(input_wait_ns) / 1e9 AS input_wait, AVG(host_to_device_ns) / 1e9 AS host_to_device,
       AVG(forward_ns) / 1e9 AS forward, AVG(optimizer_ns) / 1e9 AS optimizer,
       AVG(other_ns) / 1e9 AS other
FROM step AS s JOIN shared USING (piece, step)
LEFT JOIN wait ON wait.rank = s.rank AND wait.step = s.step
GROUP BY s.piece, s.rank
"""
_PARTS = {"input_wait": "waits for data", "host_to_device": "moves its batches",
          "forward": "is in the model", "other": "does other things",
          "optimizer": "is in its optimizer"}  # fmt: skip


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
        yield Verdict(
            piece, fired, evidence, lost_pct=gap_pct, readings=culprit[2].steps,
            who=f"rank {culprit[1]}" if fired else "",
            title=_name_cause(culprit[2], victim[2], gap_s, limits) if fired else "",
        )  # fmt: skip


def _name_cause(slow: Any, other: Any, gap_s: float, limits: Limits) -> str:
    """The part of the step that makes the difference, if one does."""
    title = f"Rank {slow.rank} is slower than the others, and they wait for it"
    excess = {part: getattr(slow, part) - getattr(other, part) for part in _PARTS}
    worst = max(excess, key=lambda part: excess[part])
    if 100 * excess[worst] < limits.cause_pct * gap_s:
        return title
    return f"{title}: it {_PARTS[worst]} for longer"
