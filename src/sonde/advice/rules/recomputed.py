"""Forward passes are computed a second time in the backward pass (activation checkpointing).

Why it hurts: it saves memory, and costs a third of the time of what is computed twice.

What to do: where memory is left, use checkpointing for fewer modules or none of them
(`torch.utils.checkpoint`, `gradient_checkpointing`), or a smaller batch without it; keep it if the
model fits in no other way.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._caller_lines import make_caller_lines
from sonde.advice.rules._code import show_place
from sonde.advice.verdict import LEVELS, Limit, Limits, Rows, Verdict

MOST = LEVELS[0]  # whoever needs the memory has no choice
NEEDS = ("python.torch_trace.self_duration", "python.torch_step.dur_ns")
IN_FILES = ("/torch/utils/checkpoint.py",)
OTHERWISE = "nothing is computed again"
LIMITS = {"share_pct": Limit(10, "of the steps spent computing again")}
_CHECKPOINT = "file LIKE '%/torch/utils/checkpoint.py' AND func = 'checkpoint'"
# The line is the one outside of torch that asks for it.
SQL = f"""
WITH step AS (
  SELECT {{piece}} AS piece, host, pid, rank, step, dur_ns FROM python.torch_step
  WHERE {{inside}} AND training AND NOT unrecorded AND lost = 0),
again AS (
  SELECT host, pid, step, 1e9 * SUM(self_duration) AS again_ns FROM python.torch_trace
  WHERE stage = 'recompute' GROUP BY 1, 2, 3),
about AS (SELECT DISTINCT host, pid FROM again),
{make_caller_lines(_CHECKPOINT)}
SELECT piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
       100 * COALESCE(SUM(again_ns), 0) / SUM(dur_ns)::DOUBLE AS share_pct,
       ANY_VALUE(place.file) AS file, ANY_VALUE(place.lineno) AS lineno,
       ANY_VALUE(place.func) AS func
FROM step LEFT JOIN again USING (host, pid, step) LEFT JOIN caller_line USING (host, pid)
GROUP BY 1, 2, 3
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        yield Verdict(
            row.piece, row.share_pct >= limits.share_pct, {"of_the_time_pct": row.share_pct},
            severity="info", readings=row.steps, who="" if row.rank is None else f"rank {row.rank}",
            line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip
