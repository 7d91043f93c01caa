"""The optimizer updates all of a large embedding table in each step.

Why it hurts: a batch has a few of its rows, and only these have gradients; but a usual optimizer
reads and writes all of them, and their moments too.

What to do: `nn.Embedding(…, sparse=True)` with an optimizer of its own for the table
(`torch.optim.SparseAdam`, or SGD or Adagrad without weight decay), which touches the rows of the
batch only; or a smaller table (rare keys together, hashing). Where the table is also the last
layer of the model, all rows have gradients: then keep it.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "busy"
MOST = "warning"
NEEDS = ("python.torch_step.optimizer_ns", "python.torch_module.own_parameters")
OTHERWISE = "the job does not train"
ONLY_IF = ("python.torch_step", "BOOL_OR(optimizer_ns >= {optimizer_pct} / 100 * dur_ns)")
LIMITS = {
    "optimizer_pct": Limit(40, "of a step spent in the optimizer"),
    "table_pct": Limit(70, "of all trained values that are in embeddings"),
    "values": Limit(1e6, "in embeddings, at least"),
}
SQL = """
WITH module AS (
  SELECT host, pid, module, ARG_MAX(own_parameters, t_ns) AS own, ARG_MAX(type, t_ns) AS type
  FROM python.torch_module GROUP BY 1, 2, 3),
model AS (
  SELECT host, pid, SUM(own)::DOUBLE AS whole,
         COALESCE(SUM(own) FILTER (type IN ('Embedding', 'EmbeddingBag')), 0)::DOUBLE AS held,
         ARG_MAX(module, own) AS largest
  FROM module GROUP BY 1, 2),
used AS (
  SELECT host, pid, BOOL_OR(optimizer LIKE 'Sparse%') AS is_sparse
  FROM python.torch_optimizer GROUP BY 1, 2)
SELECT {piece} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
       ANY_VALUE(held) AS held, 100 * ANY_VALUE(held) / ANY_VALUE(whole) AS table_pct,
       ANY_VALUE(largest) AS largest, COALESCE(BOOL_OR(is_sparse), FALSE) AS is_sparse,
       100 * SUM(optimizer_ns) / SUM(dur_ns)::DOUBLE AS optimizer_pct
FROM python.torch_step JOIN model USING (host, pid) LEFT JOIN used USING (host, pid)
WHERE {inside} AND training AND ended_by <> 'end' AND dur_ns > 0 AND whole > 0 GROUP BY 1, 2, 3
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        is_large = row.table_pct >= limits.table_pct and row.held >= limits["values"]
        fired = is_large and row.optimizer_pct >= limits.optimizer_pct and not row.is_sparse
        evidence = {
            "optimizer_pct": row.optimizer_pct, "values_in_tables": row.held,
            "of_all_values_pct": row.table_pct, "largest": row.largest,
        }  # fmt: skip
        yield Verdict(
            row.piece, fired, evidence,
            lost_pct=row.optimizer_pct * row.table_pct / 100 if fired else None,
            readings=row.steps, who="" if row.rank is None else f"rank {row.rank}",
        )  # fmt: skip
