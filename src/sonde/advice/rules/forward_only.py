"""Models compute much that no backward pass uses.

Why it hurts: each such pass takes the time and the memory of training, for an evaluation, or for
the targets of a model that is not trained.

What to do: run it under `torch.inference_mode()` or `torch.no_grad()`, in larger batches; evaluate
less often or on a part of the data; keep what a frozen model says of each example.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._caller_lines import make_caller_lines
from sonde.advice.rules._code import show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

MOST = "warning"
NEEDS = ("python.torch_trace.stage", "python.torch_step.training", "python.stack_sample.wall_ns")
OTHERWISE = "the job does not train, or no step has far more forward passes than others"
LIMITS = {
    "share_pct": Limit(15, "of the time of training in such forward passes: worth mentioning"),
    "warning_pct": Limit(30, "the same: worth a warning"),
    "calls": Limit(10, "fewest such passes"),
    "times": Limit(3, "times as many forward passes as in the usual step, at least"),
    "backward": Limit(
        0.5, "of as many times the usual backward pass that they would take, at most"
    ),
}
# The step of a sample is the last one that began before it.
_SAMPLES = """
  SELECT s.host, s.pid, s.stack, SUM(s.wall_ns) AS wall_ns
  FROM (SELECT host, pid, t_ns, stack, wall_ns FROM python.stack_sample
        SEMI JOIN share USING (host, pid) WHERE {inside} AND thread = pid) AS s
  ASOF JOIN held ON s.host = held.host AND s.pid = held.pid AND s.t_ns >= held.t_ns
  WHERE is_alone GROUP BY ALL"""
# Which module a backward pass belongs to is not always seen, but how long all of it takes: where a
# step has many more forward passes than usual, and no longer backward pass, they have none. A GPU
# may run them later, when the host waits longer than usual for a result. The line is the one that
# calls the model.
SQL = f"""
WITH step AS (
  SELECT {{piece}} AS piece, host, pid, rank, step, t_ns, dur_ns, backward_ns
  FROM python.torch_step
  WHERE {{inside}} AND training AND NOT unrecorded AND lost = 0 AND ended_by <> 'end'),
pass AS (
  SELECT host, pid, step, module, COUNT(*) FILTER (stage = 'forward') AS forwards,
         COUNT(*) FILTER (stage = 'backward') AS backwards,
         1e9 * SUM(duration) FILTER (stage = 'forward') AS forward_ns
  FROM python.torch_trace WHERE depth = 0 AND stage IN ('forward', 'backward')
    AND (host, pid) IN (SELECT (host, pid) FROM step) GROUP BY ALL),
usual AS (
  SELECT host, pid, module, MEDIAN(forwards) AS forwards, MEDIAN(backward_ns) AS backward_ns
  FROM pass JOIN step USING (host, pid, step) WHERE forwards > 0 GROUP BY ALL),
device AS (
  SELECT host, pid, step, SUM(dur_ns) AS device_ns FROM python.cuda_call
  WHERE {{inside}} AND thread = pid AND (kind = 'synchronize' OR direction = 'device to host')
  GROUP BY ALL),
usual_device AS (
  SELECT host, pid, MEDIAN(COALESCE(device_ns, 0)) AS usual_device_ns
  FROM step LEFT JOIN device USING (host, pid, step) GROUP BY ALL),
alone AS (
  SELECT host, pid, step, SUM(pass.forwards - usual.forwards) AS passes,
         SUM(forward_ns * (pass.forwards - usual.forwards) / pass.forwards)
           + GREATEST(0, LEAST(ANY_VALUE(dur_ns) - SUM(forward_ns), ANY_VALUE(
               COALESCE(device_ns, 0) - COALESCE(usual_device_ns, 0)))) AS alone_ns
  FROM pass JOIN step USING (host, pid, step) JOIN usual USING (host, pid, module)
  LEFT JOIN device USING (host, pid, step) LEFT JOIN usual_device USING (host, pid)
  WHERE pass.forwards >= {{times}} * usual.forwards AND pass.backwards < pass.forwards
    AND step.backward_ns
      <= {{backward}} * usual.backward_ns * pass.forwards / usual.forwards
  GROUP BY ALL),
share AS (
  SELECT host, pid, SUM(passes)::BIGINT AS passes, COUNT(*) AS steps,
         100 * SUM(alone_ns) / SUM(dur_ns) AS share_pct
  FROM step LEFT JOIN alone USING (host, pid, step) GROUP BY ALL
  HAVING SUM(passes) >= {{calls}} AND share_pct >= {{share_pct}}),
held AS (
  SELECT host, pid, t_ns, dur_ns, passes > 0 AS is_alone
  FROM step LEFT JOIN alone USING (host, pid, step) SEMI JOIN share USING (host, pid)),
{make_caller_lines(samples=_SAMPLES)}
SELECT DISTINCT piece, step.pid, rank, share_pct, passes, steps, place.file AS file,
       place.lineno AS lineno, place.func AS func
FROM step JOIN share USING (host, pid) LEFT JOIN caller_line USING (host, pid)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        evidence = {
            "of_the_time_pct": row.share_pct, "forward_passes_without_backward": row.passes,
            "training_steps": row.steps,
        }  # fmt: skip
        yield Verdict(
            row.piece, True, evidence,
            severity="warning" if row.share_pct >= limits.warning_pct else "info",
            readings=row.passes, who="" if row.rank is None else f"rank {row.rank}",
            line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip
