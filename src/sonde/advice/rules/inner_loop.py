"""Inside of the model, one module is called many times in each step.

Why it hurts: a loop in Python over time, positions or examples starts every operator anew in each
turn, forward and backward, and each has little to do.

What to do: let one call do all turns: nn.LSTM, nn.GRU or nn.RNN in place of a cell that is stepped
through time, one batch in place of example by example, a convolution or a matrix product over all
positions; where each turn needs the last one's result, torch.compile or torch.jit.script the loop.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._code import PLACE, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

MOST = "warning"
NEEDS = ("python.torch_trace.call", "python.torch_step.forward_ns", "python.stack_sample.wall_ns")
OTHERWISE = "no step has all of its modules recorded"
ONLY_IF = ("python.torch_trace", "MAX(call) FILTER (depth > 0) >= {calls} - 1")
LIMITS = {
    "calls": Limit(32, "of the same module in a step, at least"),
    "share_pct": Limit(40, "of the forward passes spent in them"),
    "model_pct": Limit(50, "of the steps spent in model and backward pass"),
    "short_ns": Limit(3e6, "a call, at most: long ones have enough to do"),
}
# Steps are recorded with all modules at the beginning, and now and then: they tell of the others.
# The line is the innermost of the model's own.
SQL = f"""
WITH step AS (
  SELECT {{piece}} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
         100 * SUM(forward_ns + backward_ns) / SUM(dur_ns)::DOUBLE AS model_pct
  FROM python.torch_step WHERE {{inside}} AND {{main_step}} AND ended_by <> 'end' AND dur_ns > 0
  GROUP BY 1, 2, 3),
part AS (
  SELECT host, pid, step, module, COUNT(*) AS calls, SUM(duration) AS spent_s
  FROM python.torch_trace WHERE stage = 'forward' AND depth > 0 GROUP BY 1, 2, 3, 4),
whole AS (
  SELECT host, pid, step, SUM(duration) AS forward_s FROM python.torch_trace
  WHERE stage = 'forward' AND depth = 0 GROUP BY 1, 2, 3),
inner_part AS (
  SELECT host, pid, module, MEDIAN(calls)::DOUBLE AS calls,
         1e9 * SUM(spent_s) / SUM(calls) AS call_ns,
         100 * SUM(spent_s) / SUM(forward_s) AS share_pct
  FROM part JOIN whole USING (host, pid, step) GROUP BY 1, 2, 3),
most AS (
  SELECT * FROM inner_part WHERE calls >= {{calls}}
  QUALIFY ROW_NUMBER() OVER (PARTITION BY host, pid ORDER BY share_pct DESC, module) = 1),
sample AS (
  SELECT host, pid, stack, SUM(wall_ns) AS wall_ns FROM python.stack_sample
  SEMI JOIN most USING (host, pid) WHERE {{inside}} AND thread = pid GROUP BY ALL),
place AS ({PLACE}),
line AS (
  SELECT host, pid, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place
  FROM (SELECT host, pid, file, lineno, func, SUM(wall_ns) AS wall_ns
        FROM sample JOIN place USING (stack)
        WHERE stack IN (SELECT f.stack FROM python.frame AS f JOIN python.frame AS own
                        ON own.stack = f.stack AND own.depth > f.depth
                        WHERE f.file LIKE '%/torch/nn/modules/module.py')
        GROUP BY ALL) GROUP BY ALL)
SELECT piece, rank, steps, model_pct, module, COALESCE(calls, 0) AS calls,
       call_ns, share_pct, place.file AS file, place.lineno AS lineno, place.func AS func
FROM step LEFT JOIN most USING (host, pid) LEFT JOIN line USING (host, pid)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        fired = (
            row.calls >= limits.calls
            and row.share_pct >= limits.share_pct
            and row.call_ns <= limits.short_ns
            and row.model_pct >= limits.model_pct
        )
        evidence = {"module": row.module, "calls_in_a_step": row.calls, "each_ns": row.call_ns,
                    "of_the_forward_pass_pct": row.share_pct}  # fmt: skip
        yield Verdict(
            row.piece, fired, evidence, severity="warning", readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}",
            line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip
