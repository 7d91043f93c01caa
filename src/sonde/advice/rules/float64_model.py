"""The model computes in float64.

Why it hurts: numbers of 64 bits take twice the memory of float32, twice the time on a processor,
and up to 64 times the time on a GPU.

What to do: unless the results need so many digits, make the model float32 (no `.double()`, no
`torch.set_default_dtype(torch.float64)`) and its input too: arrays of numpy are float64 by default,
so convert them (`.astype(numpy.float32)`, `torch.as_tensor(x, dtype=torch.float32)`).
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "busy"
MOST = "info"  # some results need so many digits: nobody but the author knows
UNLESS = ("input_bound", "hang")
NEEDS = ("python.torch_module.dtype", "python.torch_step.forward_ns")
OTHERWISE = "the job has no steps"
LIMITS = {
    "float64_pct": Limit(50, "of the trainable values that are float64"),
    "model_pct": Limit(50, "of a step spent in model, backward pass and optimizer"),
}
# The share of the model's values that are of one kind, where a condition on modules says which.
SHARE_SQL = """
WITH module AS (
  SELECT host, pid, module, ARG_MAX(own_parameters, t_ns) AS own, ARG_MAX(dtype, t_ns) AS dtype,
         ARG_MAX(device, t_ns) AS device
  FROM python.torch_module GROUP BY 1, 2, 3),
model AS (
  SELECT host, pid, 100 * SUM(own) FILTER (<kind>) / SUM(own) AS share_pct
  FROM module GROUP BY 1, 2 HAVING SUM(own) > 0)
SELECT {piece} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
       COALESCE(ANY_VALUE(share_pct), 0)::DOUBLE AS share_pct,
       100 * SUM(forward_ns + backward_ns + optimizer_ns) / SUM(dur_ns)::DOUBLE AS model_pct
FROM python.torch_step JOIN model USING (host, pid)
WHERE {inside} AND {main_step} AND ended_by <> 'end' AND dur_ns > 0 GROUP BY 1, 2, 3
"""
SQL = SHARE_SQL.replace("<kind>", "dtype = 'float64'")


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        fired = row.share_pct >= limits.float64_pct and row.model_pct >= limits.model_pct
        evidence = {"float64_values_pct": row.share_pct, "in_the_model_pct": row.model_pct}
        yield Verdict(
            row.piece, fired, evidence, severity="info", readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}",
        )  # fmt: skip
