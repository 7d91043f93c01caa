"""The optimizer goes through its parameters one after the other.

Why it hurts: each parameter costs several small operators; with hundreds of them the host, or the
GPU, does little else for that part of the step.

What to do: `fused=True` (Adam, AdamW, SGD, Adagrad), or `foreach=True`.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import LEVELS, Limit, Limits, Rows, Verdict

NEEDS = ("python.torch_step.optimizer_ns", "python.torch_optimizer.way")
LIMITS = {
    "optimizer_pct": Limit(10, "of a step spent in the optimizer"),
    "on_cpu_pct": Limit(25, "the same, if the parameters are on a processor"),
    "tensors": Limit(8, "fewest parameters"),
}
SQL = """
WITH step AS (
  SELECT {piece} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps, MAX(ts) AS ts,
         100 * SUM(optimizer_ns) / SUM(dur_ns) AS optimizer_pct
  FROM python.torch_step WHERE {inside} AND ended_by = 'optimizer' GROUP BY 1, 2, 3),
facts AS (
  SELECT ts, host, pid, optimizer, way, can_fuse, tensors, device FROM python.torch_optimizer)
SELECT s.piece, s.rank, s.steps, s.optimizer_pct, f.optimizer, f.way, f.can_fuse, f.tensors,
       f.device
FROM step AS s ASOF JOIN facts AS f ON s.host = f.host AND s.pid = f.pid AND s.ts >= f.ts
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        # On the CPU, foreach is the same loop.
        is_cpu = row.device.startswith("cpu")
        better = row.can_fuse or not is_cpu
        least_pct = limits.on_cpu_pct if is_cpu else limits.optimizer_pct
        slow = row.way == "single" and better and row.tensors >= limits.tensors
        evidence = {
            "optimizer_pct": row.optimizer_pct, "optimizer": row.optimizer, "tensors": row.tensors,
            "device": row.device,
        }  # fmt: skip
        yield Verdict(
            row.piece, slow and row.optimizer_pct >= least_pct, evidence,
            lost_pct=row.optimizer_pct / 2, readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}",
            # There it is what every optimizer does unless it is asked for more.
            most=LEVELS[0] if is_cpu else LEVELS[-1],
        )  # fmt: skip
