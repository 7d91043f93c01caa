"""torch.compile compiles again and again.

Why it hurts: each new shape, number or object that the code was not compiled for costs seconds,
which no later step gains back.

What to do: see what changed with TORCH_LOGS=recompiles; pad batches to a few fixed lengths, call
torch.compile with dynamic=True, pass numbers that change as tensors, and leave code that changes
from call to call outside (torch.compiler.disable).
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._code import PLACE, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

IN_FILES = ("/torch/_dynamo/convert_frame.py", "/torch/_inductor/compile_fx.py")
OTHERWISE = "nothing is compiled"
NEEDS = ("python.torch_step.dur_ns", "python.stack_sample.stack")
LIMITS = {
    "share_pct": Limit(10, "of the time of the steps that is spent compiling"),
    "steps": Limit(5, "fewest steps that compile: the first ones have to"),
}
# A sample belongs to the last step that began before it. Compiling is a stack that goes through
# the functions of torch that turn a frame, or a graph, into code; calls of what is compiled do not.
SQL = f"""
WITH compiling AS (
  SELECT DISTINCT stack FROM python.frame
  WHERE (file LIKE '%/torch/_dynamo/convert_frame.py' AND func LIKE '%compile%')
     OR (file LIKE '%/torch/_inductor/compile_fx.py' AND func LIKE '%compile%')
     OR file LIKE '%/torch/_functorch/_aot_autograd/%graph_c%'),
step AS (
  SELECT {{piece}} AS piece, host, pid, rank, step, t_ns, dur_ns
  FROM python.torch_step WHERE {{inside}}),
sample AS (
  SELECT host, pid, t_ns, stack, wall_ns FROM python.stack_sample
  WHERE {{inside}} AND thread = pid AND stack IN (FROM compiling)),
within AS (
  SELECT step.piece, step.host, step.pid, step.step, stack, wall_ns
  FROM sample ASOF JOIN step
    ON sample.host = step.host AND sample.pid = step.pid AND sample.t_ns >= step.t_ns),
counted AS (
  SELECT host, pid, COUNT(DISTINCT step) AS compiled FROM within GROUP BY 1, 2),
spent AS (
  SELECT piece, host, pid, COUNT(DISTINCT step) AS now, SUM(wall_ns) AS spent_ns
  FROM within GROUP BY 1, 2, 3),
line AS (
  SELECT piece, host, pid, file, lineno, func, SUM(wall_ns) AS wall_ns
  FROM within JOIN ({PLACE}) USING (stack) GROUP BY ALL),
top AS (
  SELECT piece, host, pid, ARG_MAX(struct_pack(file, lineno, func), wall_ns) AS place
  FROM line GROUP BY 1, 2, 3),
whole AS (
  SELECT piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps, SUM(dur_ns) AS all_ns
  FROM step GROUP BY 1, 2, 3)
SELECT piece, rank, steps, COALESCE(compiled, 0) AS compiled, COALESCE(now, 0) AS now,
       100 * COALESCE(spent_ns, 0) / all_ns AS share_pct, place.file, place.lineno, place.func
FROM whole LEFT JOIN counted USING (host, pid) LEFT JOIN spent USING (piece, host, pid)
LEFT JOIN top USING (piece, host, pid)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        share_pct = min(100.0, float(row.share_pct))
        evidence = {
            "compiling_pct": share_pct, "steps_that_compile": row.now, "steps": row.steps,
            "compiled_in_all": row.compiled,
        }  # fmt: skip
        yield Verdict(
            row.piece, row.compiled >= limits.steps and share_pct >= limits.share_pct, evidence,
            lost_pct=share_pct, readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}",
            line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip
