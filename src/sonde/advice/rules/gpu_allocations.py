"""Memory of the GPU is given back and got anew again and again.

Why it hurts: PyTorch keeps memory that tensors no longer use, so that getting memory costs nothing.
When it is given back to CUDA, each time the GPU has to finish its work first, and to get it again
takes as long as many kernels.

What to do: leave `torch.cuda.empty_cache()` out of the loop. If the memory is full, and so has to
be given back, make the batch smaller, or try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._code import show_place
from sonde.advice.rules._gpu import LOOP
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("python.cuda_call.dur_ns", "system.gpu.util_pct")
OTHERWISE = "the job has no steps on a GPU"
LIMITS = {"share_pct": Limit(5, "of the steps in CUDA's calls that get memory and give it back")}
_PINNING = "The program pins memory of the host anew again and again"
_PINNING_TODO = (
    "Pin memory once, and use it again: the DataLoader's pin_memory=True does so, in a thread of "
    "its own; `tensor.pin_memory()` in the loop does not."
)
# Memory is got anew because it was given back: where the program does that is the place to change.
SQL = f"""
WITH {LOOP},
place AS (
  SELECT {{piece}} AS piece, host, pid, file, lineno, func, SUM(dur_ns) AS call_ns,
         SUM(calls) AS calls,
         COALESCE(SUM(dur_ns) FILTER (call LIKE '%Host%'), 0) AS host_ns,
         COALESCE(SUM(dur_ns) FILTER (kind = 'free' AND call NOT LIKE '%Host%'), 0) AS freed_ns
  FROM python.cuda_call
  WHERE {{inside}} AND kind IN ('allocate', 'free') AND COALESCE(thread, pid) = pid
  GROUP BY ALL),
share AS (
  SELECT piece, host, pid, SUM(call_ns) AS all_call_ns, SUM(calls) AS all_calls,
         SUM(host_ns) > SUM(call_ns) / 2 AS is_host, SUM(freed_ns) > 0 AS is_freed
  FROM place GROUP BY 1, 2, 3),
weighed AS (
  SELECT piece, host, pid, file, lineno, func, is_host, all_call_ns, all_calls,
         CASE WHEN is_freed AND NOT is_host THEN freed_ns ELSE call_ns END AS weight
  FROM place JOIN share USING (piece, host, pid)),
call AS (
  SELECT piece, host, pid, MAX(all_call_ns) AS call_ns, MAX(all_calls) AS calls,
         ANY_VALUE(is_host) AS is_host, ARG_MAX(file, weight) AS file,
         ARG_MAX(lineno, weight) AS lineno, ARG_MAX(func, weight) AS func
  FROM weighed GROUP BY 1, 2, 3)
SELECT piece, rank, steps, 100 * COALESCE(call_ns, 0) / all_ns AS share_pct,
       COALESCE(calls, 0) / steps AS calls, COALESCE(is_host, FALSE) AS is_host,
       file, lineno, func
FROM step LEFT JOIN call USING (piece, host, pid)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        yield Verdict(
            row.piece, row.share_pct >= limits.share_pct,
            {"share_pct": row.share_pct, "calls_a_step": row.calls},
            lost_pct=row.share_pct, readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}",
            title=_PINNING if row.is_host else "", todo=_PINNING_TODO if row.is_host else "",
            line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip
