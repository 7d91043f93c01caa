"""Recording takes more of the job's time than it should.

Why it hurts: a profiler that slows the job down is part of what is wrong with it.

What to do: `sonde config TARGET torch.budget_pct=1` (the default keeps to a budget by recording
less), `torch.depth=2`, or `source.torch=off`; see the table sonde.overhead.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

CROWD = "info"  # what recording takes is measured by the clock
NEEDS = ("sonde.overhead.direct_pct", "python.torch_step.step")
LIMITS = {"overhead_pct": Limit(5, "that steps take longer because they are recorded")}
# A row is about the steps up to it. `low_pct` is what it is at least, by comparison of steps, and
# `high_pct` at most; what the recording measures of itself is a lower bound, too, but longer where
# others have the processor meanwhile. Of the rows about a piece, the first one
# counts; both are gone through in the order of steps: DuckDB's ASOF JOIN compares each with each.
SQL = """
WITH step AS (
  SELECT {piece} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps, MAX(step) AS step
  FROM python.torch_step WHERE {inside} AND ended_by <> 'end' GROUP BY 1, 2, 3),
cost AS (
  SELECT host, pid, step, overhead_pct, plan,
         GREATEST(LEAST(direct_pct, COALESCE(high_pct, direct_pct)), COALESCE(low_pct, 0))
           AS least_pct
  FROM sonde.overhead WHERE source = 'torch'),
moment AS (
  SELECT host, pid, step, piece, rank, steps, NULL AS cost FROM step UNION ALL
  SELECT host, pid, step, NULL, NULL, NULL, struct_pack(least_pct, overhead_pct, plan) FROM cost)
SELECT piece, pid, rank, steps, cost.least_pct, cost.overhead_pct, cost.plan
FROM (SELECT piece, pid, rank, steps, LAST_VALUE(cost IGNORE NULLS) OVER after AS cost FROM moment
      WINDOW after AS (PARTITION BY host, pid ORDER BY step DESC, piece NULLS FIRST
                       ROWS UNBOUNDED PRECEDING))
WHERE piece IS NOT NULL AND cost IS NOT NULL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        evidence = {"at_least_pct": row.least_pct, "overhead_pct": row.overhead_pct}
        yield Verdict(
            row.piece, row.least_pct >= limits.overhead_pct, {**evidence, "recorded": row.plan},
            lost_pct=row.least_pct, readings=row.steps,
            who=f"pid {row.pid}" if row.rank is None else f"rank {row.rank}",
        )  # fmt: skip
