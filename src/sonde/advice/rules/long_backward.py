"""The backward pass takes far longer than the forward pass: it goes back into earlier steps.

Why it hurts: what was computed in the steps before is gone through again in each backward pass, and
its graph is kept in memory; the longer the program runs, the more of it there is.

What to do: cut what is carried over from its graph (`hidden = hidden.detach()`, `.item()` for a
running loss, a list of losses or outputs without graphs), and do not give backward
`retain_graph=True`, which only hides the error that would say so.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "busy"
MOST = "warning"
# Ranks wait for each other in their backward passes.
UNLESS = ("slower_steps", "single_examples", "sync_points", "slow_rank", "comm_bound")
NEEDS = ("python.torch_step.backward_ns",)
OTHERWISE = "the job does not train"
ONLY_IF = ("python.torch_step", "BOOL_OR(backward_ns >= {times} * (dur_ns - backward_ns))")
LIMITS = {
    "times": Limit(8, "times as long as all else in the step, from which it counts"),
    "steps": Limit(3, "fewest steps that train"),
}
# On a GPU a backward pass may only wait for the forward pass: nothing is known there.
SQL = """
SELECT {piece} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
       MEDIAN(backward_ns / GREATEST(1, dur_ns - backward_ns)) AS times,
       MEDIAN(backward_ns)::DOUBLE AS backward_ns, MEDIAN(forward_ns)::DOUBLE AS forward_ns,
       100 * (1 - 3 * SUM(dur_ns - backward_ns) / SUM(dur_ns)) AS lost_pct
FROM python.torch_step
WHERE {inside} AND training AND ended_by <> 'end' AND forward_ns > 0 AND NOT (host, pid) IN (
  SELECT (host, pid) FROM python.torch_memory WHERE device <> 'cpu')
GROUP BY 1, 2, 3
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        if row.steps < limits.steps:
            continue
        fired = row.times >= limits.times
        evidence = {"backward_ns": row.backward_ns, "forward_ns": row.forward_ns,
                    "times_all_else": row.times}  # fmt: skip
        yield Verdict(
            row.piece, fired, evidence, lost_pct=max(0.0, row.lost_pct) if fired else None,
            readings=row.steps, who="" if row.rank is None else f"rank {row.rank}",
        )  # fmt: skip
