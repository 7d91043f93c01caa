"""Evaluation takes much of the time of a job that trains.

Why it hurts: while it evaluates, the job does not train; what is measured more often than anybody
looks at it is time lost.

What to do: evaluate less often, on a part of the data, or in another process from a checkpoint; in
larger batches, which need no memory for gradients; under `torch.inference_mode()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._code import PLACE, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

MOST = "warning"
NEEDS = ("python.torch_step.training",)
OTHERWISE = "the job does not train, or only trains"
ONLY_IF = ("python.torch_step", "BOOL_OR(training) AND BOOL_OR(NOT training)")
LIMITS = {
    "share_pct": Limit(15, "of the time of all steps that is evaluation: worth mentioning"),
    "warning_pct": Limit(30, "the same: worth a warning"),
    "steps": Limit(20, "fewest steps of either kind"),
}
# The step of each sample is the last one that began before it.
SQL = f"""
WITH step AS (
  SELECT {{piece}} AS piece, host, pid, rank, t_ns, dur_ns, training IS FALSE AS is_evaluation
  FROM python.torch_step WHERE {{inside}} AND ended_by <> 'end'),
mixed AS (
  SELECT host, pid, SUM(dur_ns) FILTER (is_evaluation) * 100 / SUM(dur_ns) AS share_pct,
         COUNT(*) FILTER (is_evaluation) AS evaluated,
         COUNT(*) FILTER (NOT is_evaluation) AS trained
  FROM step GROUP BY 1, 2
  HAVING COUNT(*) FILTER (is_evaluation) >= {{steps}}
     AND COUNT(*) FILTER (NOT is_evaluation) >= {{steps}}),
sample AS (
  SELECT host, pid, t_ns, stack, wall_ns FROM python.stack_sample SEMI JOIN mixed USING (host, pid)
  WHERE {{inside}} AND thread = pid),
within AS (
  SELECT sample.host, sample.pid, stack, wall_ns FROM sample ASOF JOIN step
    ON sample.host = step.host AND sample.pid = step.pid AND sample.t_ns >= step.t_ns
  WHERE is_evaluation AND sample.t_ns < step.t_ns + step.dur_ns),
place AS ({PLACE}),
line AS (
  SELECT host, pid, file, lineno, func, SUM(wall_ns) AS wall_ns
  FROM within JOIN place USING (stack) GROUP BY ALL),
top AS (
  SELECT host, pid, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place
  FROM line GROUP BY 1, 2)
SELECT DISTINCT piece, pid, rank, share_pct, evaluated, trained, place.file, place.lineno,
       place.func
FROM step JOIN mixed USING (host, pid) LEFT JOIN top USING (host, pid)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    # A share is one of the whole time: an evaluation may last for many pieces.
    for row in rows:
        yield _judge_piece(row, limits)


def _judge_piece(row: Any, limits: Limits) -> Verdict:
    level = "warning" if row.share_pct >= limits.warning_pct else "info"
    evidence = {
        "evaluation_pct": row.share_pct, "evaluated_batches": row.evaluated,
        "training_steps": row.trained,
    }  # fmt: skip
    return Verdict(
        row.piece, row.share_pct >= limits.share_pct, evidence, severity=level,
        readings=row.evaluated, who="" if row.rank is None else f"rank {row.rank}",
        title=f"Evaluation takes {row.share_pct:.0f} % of the time",
        line=show_place(row.file, row.lineno, row.func),
    )  # fmt: skip
