"""Batches are so small that what every step costs takes much of the time.

Why it hurts: the optimizer, and the start of each operator, cost the same for one example as for a
hundred; with few examples a step does little else.

What to do: a larger `batch_size` (with a larger learning rate, or fewer epochs), as far as memory
allows; where it must be small, let gradients add up and call the optimizer for several at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import LEVELS, Limit, Limits, Rows, Verdict

LINE = "busy"
MOST = LEVELS[0]  # a small batch may be meant
NEEDS = ("python.torch_step.optimizer_ns", "python.torch_loader.batch_size")
LIMITS = {
    "examples": Limit(8, "in a batch, at most"),
    "optimizer_pct": Limit(30, "of a step spent in the optimizer"),
    "steps": Limit(20, "fewest in a piece"),
}
SQL = """
WITH step AS (
  SELECT {piece} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
         100 * SUM(optimizer_ns) / SUM(dur_ns) AS optimizer_pct, MEDIAN(dur_ns) AS step_ns
  FROM python.torch_step WHERE {inside} AND {main_step} AND ended_by = 'optimizer'
  GROUP BY 1, 2, 3 HAVING COUNT(*) >= {steps}),
loader AS (
  SELECT host, pid, MAX(batch_size) AS examples FROM python.torch_loader GROUP BY 1, 2
  HAVING COUNT(*) = COUNT(batch_size))
SELECT piece, rank, steps, optimizer_pct, step_ns, examples FROM step JOIN loader USING (host, pid)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        fired = row.examples <= limits.examples and row.optimizer_pct >= limits.optimizer_pct
        evidence = {
            "examples_in_a_batch": row.examples, "optimizer_pct": row.optimizer_pct,
            "step_ns": row.step_ns,
        }  # fmt: skip
        yield Verdict(
            row.piece, fired, evidence, severity="info", readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}",
        )  # fmt: skip
