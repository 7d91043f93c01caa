"""An aid for finding faults is left on, and slows the job down.

Why it hurts: such aids check, copy or wait at every operator, which may take longer than the
operators themselves.

What to do: switch it off in jobs that run for long, and on only while a fault is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sonde.advice.verdict import Limits, Rows, Verdict

NEEDS = ("python.environment.name", "system.process.process")
OTHERWISE = "no process of the job was seen"
LIMITS: dict[str, object] = {}


class Aid(NamedTuple):
    """What is on, and what to do about it."""

    title: str
    todo: str
    severity: str = "warning"


# By what turned it on: a variable of the environment and its value, or a column of torch_debug.
_AIDS = {
    "launch_blocking": Aid(
        "Every launch waits until the GPU is done: CUDA_LAUNCH_BLOCKING is set",
        "remove CUDA_LAUNCH_BLOCKING=1 from the environment and from the program. With it, "
        "host and GPU never work at the same time; it helps to find the operator that failed.",
    ),
    "anomaly": Aid(
        "Autograd looks for the origin of values that are not numbers in every step (anomaly mode)",
        "remove `torch.autograd.set_detect_anomaly(True)` (in Lightning `detect_anomaly=True`): it "
        "keeps the stack of every operator of the forward pass, and looks through the result of "
        "every one of the backward pass. Turn it on when a loss has become NaN.",
    ),
    "profiler": Aid(
        "torch.profiler records every step",
        "give it a schedule (`torch.profiler.schedule(wait=…, warmup=1, active=3)`), or take it "
        "out; `sonde capture TARGET` takes such a trace of a few steps of a running job.",
    ),
    "PYTHONDEVMODE=1": Aid(
        "Python runs in its development mode: PYTHONDEVMODE is set",
        "remove PYTHONDEVMODE=1 from the environment: it checks every block of memory.",
        "info",
    ),
    "PYTHONMALLOC=debug": Aid(
        "Python checks every block of memory: PYTHONMALLOC=debug is set",
        "remove PYTHONMALLOC from the environment.",
        "info",
    ),
    "PYTHONASYNCIODEBUG=1": Aid(
        "The event loop runs in debug mode: PYTHONASYNCIODEBUG is set",
        "remove PYTHONASYNCIODEBUG from the environment: it keeps the stack of every task and "
        "every callback.",
        "info",
    ),
    "TORCH_DISTRIBUTED_DEBUG=DETAIL": Aid(
        "Every collective is checked on all ranks first: TORCH_DISTRIBUTED_DEBUG=DETAIL is set",
        "set TORCH_DISTRIBUTED_DEBUG to OFF or INFO.",
    ),
}  # fmt: skip
# An aid is on during a piece if it was never seen off in it.
SQL = f"""
WITH process AS (
  SELECT {{piece}} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS readings,
         MIN(t_ns) AS begin_ns, MAX(t_ns) AS end_ns
  FROM system.process WHERE {{inside}} AND depth = 0 GROUP BY 1, 2, 3),
variable AS (
  SELECT host, pid, name || '=' || value AS aid FROM python.environment
  WHERE name || '=' || value IN ({", ".join(f"'{aid}'" for aid in _AIDS if "=" in aid)})),
change AS (
  SELECT host, pid, t_ns, aid, state,
         LEAD(t_ns) OVER (PARTITION BY host, pid, aid ORDER BY t_ns) AS until_ns
  FROM (SELECT host, pid, t_ns, 'anomaly' AS aid, anomaly AS state FROM python.torch_debug
        UNION ALL SELECT host, pid, t_ns, 'profiler', profiler FROM python.torch_debug
        UNION ALL SELECT host, pid, t_ns, 'launch_blocking', launch_blocking
        FROM python.torch_debug)),
used AS (
  SELECT piece, host, pid, aid FROM process JOIN variable USING (host, pid) UNION
  SELECT piece, p.host, p.pid, aid FROM process AS p JOIN change AS c
  ON p.host = c.host AND p.pid = c.pid AND state AND t_ns <= begin_ns
     AND COALESCE(until_ns >= end_ns, TRUE))
SELECT piece, host, pid, rank, readings, aid
FROM process LEFT JOIN used USING (piece, host, pid)
"""


def judge(rows: Rows, _limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        who = "" if row.rank is None else f"rank {row.rank}"
        if row.aid is None:
            yield Verdict(row.piece, False, who=who)
            continue
        aid = _AIDS[row.aid]
        yield Verdict(row.piece, True, {"left_on": row.aid}, severity=aid.severity,
                      readings=row.readings, who=who, title=aid.title, todo=aid.todo)  # fmt: skip
