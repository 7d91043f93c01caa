"""Now and then, one step takes far longer.

Why it hurts: a checkpoint, an evaluation or a log that the loop waits for stops the model, and in a
job of many ranks all of them.

What to do: do it in another thread or process (torch.distributed.checkpoint.async_save for
checkpoints), less often, or in smaller pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

from sonde.advice.rules._code import PLACE, show_place
from sonde.advice.verdict import LEVELS, Limit, Limits, Rows, Verdict

CROWD = "info"
UNLESS = ("step_change", "slower_steps")  # from some moment on, long steps are the usual ones
BESIDE = ("input_bound", "memory_creep", "recompilation", "slower_steps", "step_change")
NEEDS = ("python.torch_step.dur_ns",)
AT_ONCE = True  # how many steps lie between two outliers cannot be told across gaps
LIMITS = {
    "times": Limit(2, "times the usual length of a step, from which a step is an outlier"),
    "least": Limit(3, "fewest outliers"),
    "lost_pct": Limit(5, "of the time lost to outliers that come regularly"),
    "chance_pct": Limit(10, "of the time lost to outliers that come now and then"),
    "regular_pct": Limit(60, "of the outliers that come after the usual number of steps"),
    "apart": Limit(5, "times as long at a line as in other steps, from which only outliers run it"),
    "explained_pct": Limit(40, "of the extra time that is spent in code that only outliers run"),
    "certain_pct": Limit(60, "the same, if they do not come regularly, and to be critical"),
    "dense_pct": Limit(
        30,
        "of the steps from the first to the last long one that are as long: steps have become "
        "slower then, and not now and then",
    ),
    "starved_pct": Limit(
        50, "of the steps waiting for a processor, from which what is not regular proves nothing"
    ),
}
# Waiting for data (and for workers to start and end), for the garbage collector, and for a GPU have
# rules of their own: a loop that waits for its GPU only now and then waits for the work of all
# steps since. Waiting for a processor is the machine's affair. What is left must be spent at
# lines at which other steps hardly are.
# The step of a sample or of a collection is the last one that began before it: a join by ranges
# takes 20 times as long as going through both in the order of time.
SQL = f"""
WITH whole AS MATERIALIZED (
  SELECT {{piece}} AS piece, host, pid, rank, step, t_ns,
         input_wait_ns / 1e9 AS input_s, dur_ns / 1e9 AS whole_s
  FROM python.torch_step WHERE {{inside}} AND {{main_step}} AND ended_by <> 'end'),
pause AS (
  SELECT s.host, s.pid, s.step, SUM(g.dur_ns) / 1e9 AS pause_s
  FROM (FROM python.gc_pause WHERE {{inside}}) AS g
  ASOF JOIN whole AS s ON g.host = s.host AND g.pid = s.pid AND g.t_ns >= s.t_ns
  WHERE g.t_ns <= s.t_ns + s.whole_s * 1e9 GROUP BY 1, 2, 3),
device AS (
  SELECT host, pid, step, SUM(dur_ns) / 1e9 AS device_s FROM python.cuda_call
  WHERE {{inside}} AND thread = pid AND (kind = 'synchronize' OR direction = 'device to host')
  GROUP BY 1, 2, 3),
sample AS MATERIALIZED (
  SELECT r.host, r.pid, s.step, r.stack, r.wall_ns - r.worked_ns AS queue_ns, r.worked_ns
  FROM (SELECT host, pid, t_ns, stack, wall_ns,
               CASE WHEN idle THEN wall_ns ELSE LEAST(cpu_ns, wall_ns) END AS worked_ns
        FROM python.stack_sample WHERE {{inside}} AND thread = pid AND stack IS NOT NULL) AS r
  ASOF JOIN whole AS s ON r.host = s.host AND r.pid = s.pid AND r.t_ns >= s.t_ns
  WHERE r.t_ns <= s.t_ns + s.whole_s * 1e9),
loading AS (
  SELECT DISTINCT stack FROM python.frame WHERE file LIKE '%/torch/utils/data/dataloader.py'),
queue AS (
  SELECT host, pid, step, SUM(queue_ns) / 1e9 AS queue_s,
         COALESCE(SUM(worked_ns) FILTER (stack IN (FROM loading)), 0) / 1e9 AS loading_s
  FROM sample GROUP BY 1, 2, 3),
own_time AS (
  SELECT *, GREATEST(0, whole_s - GREATEST(input_s, COALESCE(loading_s, 0)) - COALESCE(pause_s, 0)
                        - COALESCE(queue_s, 0) - COALESCE(device_s, 0)) AS took_s
  FROM whole LEFT JOIN pause USING (host, pid, step) LEFT JOIN queue USING (host, pid, step)
  LEFT JOIN device USING (host, pid, step)),
raw AS MATERIALIZED (
  SELECT *, MEDIAN(took_s) OVER (PARTITION BY host, pid) AS usual_s FROM own_time),
step AS (SELECT *, took_s > {{times}} * usual_s AS outlier FROM raw),
count AS (
  SELECT host, pid, SUM(took_s - usual_s) FILTER (outlier) AS excess_s,
         COUNT(*) FILTER (outlier) AS outliers, COUNT(*) FILTER (NOT outlier) AS others
  FROM step GROUP BY 1, 2),
place AS MATERIALIZED ({PLACE}),
spent AS (
  SELECT host, pid, file, lineno, func,
         COALESCE(SUM(worked_ns) FILTER (outlier), 0) / 1e9 AS in_outliers_s,
         COALESCE(SUM(worked_ns) FILTER (NOT outlier), 0) / 1e9 AS in_others_s
  FROM step JOIN sample USING (host, pid, step) ANTI JOIN loading USING (stack)
  JOIN place USING (stack) GROUP BY ALL),
own AS (
  SELECT host, pid, file, lineno, func, in_outliers_s AS own_s
  FROM spent JOIN count USING (host, pid)
  WHERE in_outliers_s / outliers > {{apart}} * in_others_s / GREATEST(1, others)),
top AS (
  SELECT host, pid, ARG_MAX(struct_pack(file, lineno, func), own_s) AS place, SUM(own_s) AS own_s
  FROM own GROUP BY 1, 2),
gpu AS (
  SELECT host, MEDIAN(util_pct) AS util_pct FROM system.gpu WHERE {{inside}} AND {{job_gpu}}
  GROUP BY 1 HAVING COUNT(util_pct) >= 3),
known AS (SELECT host, pid, COUNT(*) AS samples FROM sample GROUP BY 1, 2)
SELECT piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps, SUM(whole_s) AS step_s,
       COALESCE(SUM(queue_s), 0) AS queue_s,
       COALESCE(SUM(took_s - usual_s) FILTER (outlier), 0) AS lost_s, ANY_VALUE(usual_s) AS usual_s,
       MEDIAN(took_s * 1e9) FILTER (outlier) AS outlier_ns,
       LIST(step ORDER BY step) FILTER (outlier) AS outliers,
       LIST(took_s - usual_s ORDER BY step) FILTER (outlier) AS excesses_s,
       -- Several threads may work for an outlier at the same time.
       ANY_VALUE(CASE WHEN samples > 0
         THEN LEAST(100, 100 * COALESCE(own_s, 0) / NULLIF(excess_s, 0)) END) AS explained_pct,
       ANY_VALUE(place.file) AS file, ANY_VALUE(place.lineno) AS lineno,
       ANY_VALUE(place.func) AS func, ANY_VALUE(util_pct) AS util_pct
FROM step JOIN count USING (host, pid) LEFT JOIN top USING (host, pid) LEFT JOIN gpu USING (host)
LEFT JOIN known USING (host, pid) GROUP BY piece, host, pid
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    by_process: dict[tuple[str, int], list[Any]] = {}
    for row in rows:
        by_process.setdefault((row.host, row.pid), []).append(row)
    for found in by_process.values():
        yield from _judge_process(found, limits)


def _judge_process(rows: list[Any], limits: Limits) -> Iterator[Verdict]:
    """All pieces of one process at once: between two outliers there may be many."""
    excesses = [
        pair for row in rows for pair in zip(row.outliers or (), row.excesses_s or (), strict=True)
    ]
    longest = _pick_longest(excesses)
    period = _find_period(longest, limits)
    # A GPU that is busy all the time loses nothing: whatever the host does, it is ahead of it.
    idle_pct = 100 - (rows[0].util_pct or 0.0)
    lost_pct = 100 * sum(row.lost_s for row in rows) / sum(row.step_s for row in rows)
    lost_pct = min(lost_pct, idle_pct)
    # Without samples we cannot know whether they do something of their own.
    explained_pct = rows[0].explained_pct
    if period is not None:
        explained = explained_pct is None or explained_pct >= limits.explained_pct
        fired = lost_pct >= limits.lost_pct and explained
        title = f"Every {period} steps, one takes far longer"
    else:
        explained = (explained_pct or 0) >= limits.certain_pct and not _are_dense(longest, limits)
        queue_pct = 100 * sum(row.queue_s for row in rows) / sum(row.step_s for row in rows)
        # Where others have the processors, single steps are long for reasons that samples miss.
        explained = explained and queue_pct < limits.starved_pct
        fired = lost_pct >= limits.chance_pct and explained
        title = "Now and then a step takes far longer, in code that other steps do not run"
    is_certain = period is not None and (explained_pct or 0) >= limits.certain_pct
    for row in rows:
        evidence = {
            "period_steps": period, "usual_step_ns": 1e9 * row.usual_s,
            "outlier_step_ns": row.outlier_ns,
            "explained_by_own_code_pct": row.explained_pct,
            "total_outliers": len(row.outliers or ()),
        }  # fmt: skip
        yield Verdict(
            row.piece, fired, evidence, lost_pct=min(100 * row.lost_s / row.step_s, idle_pct),
            readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}",
            title=title if fired else "", most=LEVELS[-1] if is_certain else "warning",
            line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip


def _pick_longest(excesses: list[tuple[int, float]]) -> list[int]:
    """Return the steps that carry the time lost, in order: those at least half as long as the one
    in the middle of it. What else is a little late comes by chance, and hides that these do not."""
    half_s = sum(excess_s for _step, excess_s in excesses) / 2
    middle_s = 0.0
    for _step, excess_s in sorted(excesses, key=lambda pair: -pair[1]):
        middle_s, half_s = excess_s, half_s - excess_s
        if half_s <= 0:
            break
    return [step for step, excess_s in excesses if excess_s >= middle_s / 2]


def _are_dense(steps: list[int], limits: Limits) -> bool:
    """Return whether most steps between the first and the last of these are as long, or they come
    in a few runs."""
    runs = len(_list_starts(steps))
    span = steps[-1] - steps[0] + 1 if steps else 1
    return runs < limits.least or 100 * len(steps) > limits.dense_pct * span


def _list_starts(steps: list[int]) -> list[int]:
    """Return the first step of each run of steps without a gap."""
    before = [None, *steps]
    return [step for last, step in zip(before, steps, strict=False) if last != step - 1]


def _find_period(steps: list[int], limits: Limits) -> int | None:
    """After how many steps they come, if they do so regularly."""
    firsts = _list_starts(steps)
    gaps = [later - step for step, later in pairwise(firsts)]
    if len(firsts) < limits.least or not gaps:
        return None
    usual = round(median(gaps))
    near = sum(1 for gap in gaps if abs(gap - usual) <= 0.1 * usual)
    return usual if usual > 1 and 100 * near >= limits.regular_pct * len(gaps) else None
