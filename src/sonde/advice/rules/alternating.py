"""CPU and GPU work by turns instead of at the same time.

Why it hurts: while the CPU prepares a batch the GPU waits, and the other way round; overlapped, a
step would take about as long as the longer of the two.

What to do: prefetch: a DataLoader with num_workers > 0, prefetch_factor and pin_memory, copies
with non_blocking=True, tf.data's prefetch; and take `.item()`, printing and saving out of the
loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, pstdev
from typing import Any

from sonde.advice.patterns import correlate, is_alternating
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "any"
NEEDS = ("system.gpu.util_pct", "system.cpu.busy_pct", "system.cpu.interval_ns")
UNLESS = ("input_bound",)
OTHERWISE = "the job uses no GPU"
LIMITS = {
    "util_pct": Limit(85, "mean utilisation of the GPU below this is time to spare"),
    "against": Limit(0.5, "how much CPU and GPU go against each other in a window, 0 to 1"),
    "overall": Limit(0.3, "and in all windows together"),
    "errors": Limit(2.5, "so many standard errors from chance, in a window"),
    "swing_pct": Limit(10, "the GPU's use must swing by this standard deviation"),
    "compat": Limit(0, "1: GPU 0 alone, and as OpenPAI's profiler judged"),
}
# A look reads the CPU, then each GPU, each at its own moment: a GPU's row belongs to the look that
# it is nearest to. They are paired by sorting: an ASOF JOIN takes two minutes for a day.
SQL = """
WITH mixed AS (
  SELECT host, ts AS moment, util_pct, NULL AS look, NULL AS w, NULL AS busy_pct FROM system.gpu
  WHERE {inside} AND util_pct IS NOT NULL
    AND CASE WHEN {compat} = 1 THEN gpu = 0 ELSE {job_gpu} END
  UNION ALL
  SELECT host, ts - to_microseconds((interval_ns // 2000)::BIGINT), NULL, ts, {window}, busy_pct
  FROM system.cpu WHERE {inside} AND busy_pct IS NOT NULL AND interval_ns IS NOT NULL),
near AS (
  SELECT host, util_pct, LAST_VALUE(look IGNORE NULLS) OVER line AS look,
         LAST_VALUE(w IGNORE NULLS) OVER line AS w,
         LAST_VALUE(busy_pct IGNORE NULLS) OVER line AS busy_pct
  FROM mixed WINDOW line AS (PARTITION BY host ORDER BY moment, look NULLS LAST)),
pair AS (
  SELECT w, host, look, ANY_VALUE(busy_pct) AS busy_pct, AVG(util_pct) AS util_pct
  FROM near WHERE util_pct IS NOT NULL AND look IS NOT NULL GROUP BY w, host, look)
SELECT w, host, COUNT(*) AS looks, LIST(busy_pct ORDER BY look) AS cpu,
       LIST(util_pct ORDER BY look) AS gpu
FROM pair GROUP BY w, host
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    windows = [row for row in rows if row.looks >= 3]
    if limits.compat:
        for row in windows:
            spare = fmean(row.gpu) < limits.util_pct
            yield Verdict(row.w, spare and is_alternating(row.cpu, row.gpu), looks=row.looks)
        return
    # One window can look so by chance, or by two rhythms that drift; all of them together cannot.
    overall, _ = correlate(*_join(windows))
    for row in windows:
        r, errors = correlate(row.cpu, row.gpu)
        util = fmean(row.gpu)
        against = -r >= limits.against and -errors >= limits.errors and -overall >= limits.overall
        fired = against and util < limits.util_pct and pstdev(row.gpu) >= limits.swing_pct
        evidence = {"util_pct": util, "correlation": r, "overall_correlation": overall}
        yield Verdict(row.w, fired, evidence, looks=row.looks, lost_pct=100 - util)


def _join(windows: list[Any]) -> tuple[list[float], list[float]]:
    """All samples, each window around its own mean: slow changes of both are no rhythm."""
    cpu: list[float] = []
    gpu: list[float] = []
    for row in windows:
        cpu_mean, gpu_mean = fmean(row.cpu), fmean(row.gpu)
        cpu += [value - cpu_mean for value in row.cpu]
        gpu += [value - gpu_mean for value in row.gpu]
    return cpu, gpu
