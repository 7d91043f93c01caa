"""The training loop spends its steps in Python, outside the model.

Why it hurts: what the loop computes in Python (metrics, logging, moving things about) is time in
which the model, and a GPU, has nothing to do.

What to do: do it less often, or in another process; use tensors instead of loops over
numbers; for Python inside the model see torch.compile, or make the batch larger.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._code import FETCHING, PLACE, SUMS, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("python.torch_step.other_ns", "python.stack_sample.gil", "system.gpu.util_pct")
UNLESS = ("sync_points",)  # without the wait, it would do so while the GPU works
LIMITS = {
    "outside_pct": Limit(30, "of a step outside loader, model, backward pass and optimizer"),
    "python_pct": Limit(30, "of the time in which the loop's thread runs Python"),
    "much_pct": Limit(40, "the same, from which on it is worth a warning"),
    "gpu_pct": Limit(85, "utilisation from which it does the GPU, if there is one, no harm"),
}
# Python inside of the model, the backward pass or the optimizer is no part of what is outside, nor
# is ours.
_INSIDE = """SELECT stack FROM python.frame WHERE file LIKE '%/torch/nn/modules/module.py'
  OR file LIKE '%/torch/autograd/__init__.py' OR file LIKE '%/torch/optim/%'
  OR file LIKE '%-packages/sonde/%'"""
# While others have the processor it runs nothing. Of the usual step: what one in many does, and
# garbage collections, have rules of their own.
SQL = f"""
WITH step AS (
  SELECT {{piece}} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
         100 * MEDIAN(other_ns + host_to_device_ns) / MEDIAN(dur_ns) AS outside_pct
  FROM python.torch_step WHERE {{inside}} AND {{main_step}} AND ended_by <> 'end' GROUP BY 1, 2, 3),
pause AS (
  SELECT {{piece}} AS piece, host, pid, SUM(dur_ns) / 1e7 / {{piece_s}} AS pause_pct
  FROM python.gc_pause WHERE {{inside}} GROUP BY 1, 2, 3),
gpu AS (
  SELECT {{piece}} AS piece, host, AVG(util_pct) AS util_pct
  FROM system.gpu WHERE {{inside}} AND {{job_gpu}} GROUP BY 1, 2),
sample AS (
  SELECT piece, host, pid, stack, GREATEST(0, wall_ns - COALESCE(queue_ns, 0)) AS wall_ns,
         gil AND NOT idle AND stack NOT IN ({FETCHING}) AND stack NOT IN ({_INSIDE}) AS runs
  FROM ({SUMS}) WHERE thread = pid),
place AS ({PLACE}),
share AS (
  SELECT piece, host, pid,
         100 * SUM(wall_ns) FILTER (runs) / NULLIF(SUM(wall_ns), 0) AS python_pct
  FROM sample GROUP BY 1, 2, 3),
top AS (
  SELECT piece, host, pid, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place
  FROM (SELECT piece, host, pid, file, lineno, func, SUM(wall_ns) AS wall_ns
        FROM sample JOIN place USING (stack) WHERE runs GROUP BY ALL) GROUP BY 1, 2, 3)
SELECT piece, rank, steps, outside_pct - COALESCE(pause_pct, 0) AS outside_pct,
       COALESCE(python_pct, 0) - COALESCE(pause_pct, 0) AS python_pct, util_pct, place.file,
       place.lineno, place.func
FROM step JOIN share USING (piece, host, pid) LEFT JOIN pause USING (piece, host, pid)
LEFT JOIN gpu USING (piece, host) LEFT JOIN top USING (piece, host, pid)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        hidden = row.util_pct is not None and row.util_pct >= limits.gpu_pct
        fired = row.outside_pct >= limits.outside_pct and row.python_pct >= limits.python_pct
        is_much = row.python_pct >= limits.much_pct
        # What a GPU could do besides is the time in which it does nothing.
        idle_pct = 100 - (row.util_pct or 0)
        evidence = {"outside_model_pct": row.outside_pct, "python_pct": row.python_pct}
        if row.util_pct is not None:
            evidence["gpu_util_pct"] = row.util_pct
        yield Verdict(
            row.piece, fired and not hidden, evidence,
            lost_pct=min(row.outside_pct, row.python_pct, idle_pct) if is_much else None,
            severity="info", readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}",
            line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip
