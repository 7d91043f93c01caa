"""A model of which nothing is trained takes much of each step.

Why it hurts: what it says of an example is the same in each epoch, and it is asked anew each time.

What to do: if it sees the same examples again, ask it once for each of them, under
`torch.inference_mode()` and in large batches, and train on what it said (features, targets); if
they differ each time, as after augmentation, use a smaller or faster one.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import LEVELS, Limit, Limits, Rows, Verdict

LINE = "busy"
MOST = LEVELS[0]  # its input may differ each time
NEEDS = ("python.torch_trace.depth", "python.torch_step.training", "python.torch_module.type")
OTHERWISE = "the job does not train, or all of its modules"
LIMITS = {
    "share_pct": Limit(30, "of the steps of training in modules of which nothing is trained"),
    "steps": Limit(20, "fewest steps"),
}
# Nothing is trained of a module that has parameters, and never has a backward pass where another
# one nearly always has.
SQL = """
WITH step AS (
  SELECT {piece} AS piece, host, pid, rank, step, dur_ns FROM python.torch_step
  WHERE {inside} AND training AND NOT unrecorded AND lost = 0 AND ended_by <> 'end'),
pass AS (
  SELECT host, pid, step, module, SUM(duration) FILTER (stage = 'forward') * 1e9 AS forward_ns,
         COUNT(*) FILTER (stage = 'backward') AS backwards
  FROM python.torch_trace SEMI JOIN step USING (host, pid, step)
  WHERE depth = 0 AND stage IN ('forward', 'backward') GROUP BY ALL),
trained AS (
  SELECT host, pid, module, COUNT(*) AS steps, COUNT(*) FILTER (backwards > 0) AS seen
  FROM pass GROUP BY ALL),
frozen AS (
  SELECT host, pid, module, type FROM trained JOIN (
    SELECT host, pid, module, ANY_VALUE(type) AS type FROM python.torch_module
    GROUP BY ALL HAVING MAX(parameters) > 0) USING (host, pid, module)
  WHERE seen = 0 AND steps >= {steps} AND (host, pid) IN (
    SELECT (host, pid) FROM trained WHERE steps >= {steps} AND seen >= 0.8 * steps)),
asked AS (
  SELECT host, pid, step, SUM(forward_ns) AS frozen_ns, ARG_MAX(type, forward_ns) AS type
  FROM pass JOIN frozen USING (host, pid, module) GROUP BY ALL)
SELECT piece, rank, COUNT(*) AS steps, ARG_MAX(type, frozen_ns) AS type,
       100 * SUM(frozen_ns) / SUM(dur_ns) AS share_pct
FROM step LEFT JOIN asked USING (host, pid, step) GROUP BY piece, host, pid, rank
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        if row.share_pct is None:
            continue
        yield Verdict(
            row.piece, row.share_pct >= limits.share_pct,
            {"of_the_step_pct": row.share_pct, "module": row.type}, severity="info",
            readings=row.steps, who="" if row.rank is None else f"rank {row.rank}",
        )  # fmt: skip
