"""torch computes with far more threads than there are processors.

Why it hurts: the threads of one operator wait for the last of them, and that one waits for a
processor; each operator takes longer than with fewer threads.

What to do: give each process as many threads as it has processors for itself
(`torch.set_num_threads`, or OMP_NUM_THREADS before the program starts): the number of processors,
divided by the number of processes of the job on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "busy"
MOST = "warning"
UNLESS = ("input_bound", "hang")
NEEDS = ("python.torch_threads.threads", "python.torch_step.forward_ns")
OTHERWISE = "the job has no steps on a processor"
LIMITS = {
    "times": Limit(2, "times as many threads of all processes as processors: worth mentioning"),
    "many": Limit(4, "the same: worth a warning"),
    "model_pct": Limit(50, "of a step spent in model, backward pass and optimizer"),
}
# A model on a GPU hardly needs threads on the host.
SQL = """
WITH used AS (
  SELECT host, pid, ARG_MAX(threads, t_ns) AS threads, ARG_MAX(allowed_cores, t_ns) AS allowed
  FROM python.torch_threads SEMI JOIN (
    SELECT host, pid FROM python.torch_module WHERE starts_with(device, 'cpu'))
    USING (host, pid)
  GROUP BY 1, 2),
process AS (
  SELECT {piece} AS piece, host, pid, COUNT(*) AS steps,
         100 * SUM(forward_ns + backward_ns + optimizer_ns) / SUM(dur_ns)::DOUBLE AS model_pct
  FROM python.torch_step
  WHERE {inside} AND {main_step} AND ended_by <> 'end' AND dur_ns > 0 GROUP BY 1, 2, 3)
SELECT piece, host, SUM(steps)::BIGINT AS steps, COUNT(*) AS processes,
       SUM(threads)::BIGINT AS threads, MAX(threads) AS most, MAX(allowed) AS allowed,
       AVG(model_pct) AS model_pct
FROM process JOIN used USING (host, pid) GROUP BY 1, 2
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        times = row.threads / max(1, row.allowed)
        fired = row.most > 1 and times >= limits.times and row.model_pct >= limits.model_pct
        evidence = {
            "threads": row.threads, "processes": row.processes, "processors": row.allowed,
            "in_the_model_pct": row.model_pct,
        }  # fmt: skip
        yield Verdict(
            row.piece, fired, evidence, severity="warning" if times >= limits.many else "info",
            readings=row.steps,
            title=f"torch computes with {row.threads} threads on {row.allowed} processors",
        )  # fmt: skip
