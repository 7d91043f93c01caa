"""Recording takes more of the job's time than it may.

Why it hurts: a profiler that slows the job down is part of what is wrong with it.

What to do: `sonde config TARGET torch.budget_pct=1` (the default keeps to a budget by recording
less), `torch.depth=2`, or `source.torch=off`; see the table sonde.overhead.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("sonde.overhead.direct_pct",)
LIMITS = {"overhead_pct": Limit(5, "longer steps because they are recorded")}
# A row says what is so from then on. `low_pct` is what it is at least, by comparison of steps; what
# the recording measures of itself is a lower bound, too.
SQL = """
WITH row AS (
  SELECT {window} AS w, pid, rank, source, step, overhead_pct, plan,
         GREATEST(direct_pct, COALESCE(low_pct, 0)) AS least
  FROM sonde.overhead WHERE {inside})
SELECT w, pid, rank, source, ARG_MAX(least, step) AS least_pct,
       ARG_MAX(overhead_pct, step) AS overhead_pct, ARG_MAX(plan, step) AS plan, COUNT(*) AS looks
FROM row GROUP BY w, pid, rank, source
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        evidence = {"at_least_pct": row.least_pct, "overhead_pct": row.overhead_pct}
        yield Verdict(
            row.w, row.least_pct >= limits.overhead_pct, {**evidence, "recorded": row.plan},
            lost_pct=row.least_pct, looks=2 * row.looks,
            who=f"pid {row.pid}" if row.rank is None else f"rank {row.rank}",
        )  # fmt: skip
