"""The model is called many times in each step, and one backward pass is made of all of it.

Why it hurts: each call costs the start of every operator, forward and backward, and that is the
same for one example as for a hundred.

What to do: give the model all examples of a batch in one call (`model(torch.stack(examples))`, or
the batch as the loader made it), and add up the loss over the batch; pad or pack what differs in
length; where one result is needed for the next (a cell in a loop over time), use the module that
has the loop inside (nn.LSTM, nn.GRU).
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._caller_lines import make_caller_lines
from sonde.advice.rules._code import show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

MOST = "warning"
NEEDS = ("python.torch_step.calls", "python.torch_trace.module", "python.stack_sample.wall_ns")
OTHERWISE = "the job does not train"
ONLY_IF = ("python.torch_step", "MAX(calls) >= {calls}")
LIMITS = {
    "calls": Limit(12, "of each model in a usual step, at least"),
    "passes": Limit(8, "times as many calls as backward passes, at least"),
    "backward": Limit(0.3, "times the time of these calls that backward passes take, at least"),
    "model_pct": Limit(50, "of the steps spent in these calls and backward passes"),
    "short_ns": Limit(1e7, "a call, at most: long ones have enough to do"),
    "steps": Limit(3, "fewest steps that train"),
}
# Calls that nobody learns from, as when an agent acts, have no part in the backward pass: it takes
# far less than they do. An ensemble has many models, each of which is called once.
SQL = f"""
WITH step AS (
  SELECT {{piece}} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
         MEDIAN(calls) AS calls, MEDIAN(backward_passes) AS passes,
         SUM(forward_ns) / SUM(calls) AS call_ns, SUM(forward_ns)::DOUBLE AS forward_ns,
         SUM(backward_ns)::DOUBLE AS backward_ns, SUM(dur_ns)::DOUBLE AS dur_ns
  FROM python.torch_step WHERE {{inside}} AND training AND ended_by <> 'end' AND calls > 0
  GROUP BY 1, 2, 3 HAVING COUNT(*) >= {{steps}}),
about AS (SELECT DISTINCT host, pid FROM step WHERE calls >= {{calls}}),
model AS (
  SELECT host, pid, COUNT(DISTINCT module) AS models FROM python.torch_trace
  SEMI JOIN about USING (host, pid) WHERE depth = 0 AND stage = 'forward' GROUP BY 1, 2),
{make_caller_lines()}
SELECT piece, pid, rank, steps, calls / COALESCE(models, 1) AS calls, calls / passes AS by_pass,
       call_ns, backward_ns / forward_ns AS backward,
       100 * (forward_ns + backward_ns) / dur_ns AS model_pct,
       place.file AS file, place.lineno AS lineno, place.func AS func
FROM step LEFT JOIN model USING (host, pid) LEFT JOIN caller_line USING (host, pid)
WHERE forward_ns > 0 AND dur_ns > 0 AND passes > 0
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        is_many = row.calls >= limits.calls and row.by_pass >= limits.passes
        is_short = row.call_ns <= limits.short_ns and row.backward >= limits.backward
        yield Verdict(
            row.piece, is_many and is_short and row.model_pct >= limits.model_pct,
            {"calls_in_a_step": row.calls, "each_ns": row.call_ns,
             "in_the_model_pct": row.model_pct},
            severity="warning", readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}",
            line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip
