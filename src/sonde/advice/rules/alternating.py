"""CPU and GPU take turns instead of working at the same time.

Why it hurts: while the CPU prepares a batch the GPU waits, and the other way round; overlapped, a
step would take about as long as the longer of the two.

What to do: prefetch: a DataLoader with num_workers > 0, prefetch_factor and pin_memory, copies
with non_blocking=True, tf.data's prefetch; and keep `.item()`, printing and saving out of the
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
    "util_pct": Limit(85, "GPUs with a mean utilisation below this have time to spare"),
    "against": Limit(
        0.5, "how strongly CPU and GPU work against each other within a piece, 0 to 1"
    ),
    "overall": Limit(0.3, "the same over all pieces together"),
    "errors": Limit(2.5, "standard errors away from chance, within a piece"),
    "swing_pct": Limit(10, "least standard deviation of the GPU's utilisation"),
    "compat": Limit(0, "1: judge GPU 0 alone, as OpenPAI's profiler does"),
}
# A reading covers the CPU, then each GPU, each at its own moment: a GPU's row belongs to the
# reading nearest to it. They are paired by sorting: an ASOF JOIN takes two minutes for a day.
SQL = """
WITH mixed AS (
  SELECT host, ts AS moment, util_pct, NULL AS reading, NULL AS piece, NULL AS busy_pct
  FROM system.gpu WHERE {inside} AND util_pct IS NOT NULL
    AND CASE WHEN {compat} = 1 THEN gpu = 0 ELSE {job_gpu} END
  UNION ALL
  SELECT host, ts - to_microseconds((interval_ns // 2000)::BIGINT), NULL, ts, {piece}, busy_pct
  FROM system.cpu WHERE {inside} AND busy_pct IS NOT NULL AND interval_ns IS NOT NULL),
near AS (
  SELECT host, util_pct, LAST_VALUE(reading IGNORE NULLS) OVER line AS reading,
         LAST_VALUE(piece IGNORE NULLS) OVER line AS piece,
         LAST_VALUE(busy_pct IGNORE NULLS) OVER line AS busy_pct
  FROM mixed WINDOW line AS (PARTITION BY host ORDER BY moment, reading NULLS LAST)),
pair AS (
  SELECT piece, host, reading, ANY_VALUE(busy_pct) AS busy_pct, AVG(util_pct) AS util_pct
  FROM near WHERE util_pct IS NOT NULL AND reading IS NOT NULL GROUP BY piece, host, reading)
SELECT piece, host, COUNT(*) AS readings, LIST(busy_pct ORDER BY reading) AS cpu,
       LIST(util_pct ORDER BY reading) AS gpu
FROM pair GROUP BY piece, host
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    pieces = [row for row in rows if row.readings >= 3]
    if limits.compat:
        for row in pieces:
            spare = fmean(row.gpu) < limits.util_pct
            fired = spare and is_alternating(row.cpu, row.gpu)
            yield Verdict(row.piece, fired, readings=row.readings)
        return
    # One piece can look so by chance, or by two rhythms that drift; all of them together cannot.
    overall, _ = correlate(*_join(pieces))
    for row in pieces:
        r, errors = correlate(row.cpu, row.gpu)
        util = fmean(row.gpu)
        against = -r >= limits.against and -errors >= limits.errors and -overall >= limits.overall
        fired = against and util < limits.util_pct and pstdev(row.gpu) >= limits.swing_pct
        evidence = {"util_pct": util, "correlation": r, "overall_correlation": overall}
        yield Verdict(row.piece, fired, evidence, readings=row.readings, lost_pct=100 - util)


def _join(pieces: list[Any]) -> tuple[list[float], list[float]]:
    """All samples, each piece around its own mean: slow changes of both are no rhythm."""
    cpu: list[float] = []
    gpu: list[float] = []
    for row in pieces:
        cpu_mean, gpu_mean = fmean(row.cpu), fmean(row.gpu)
        cpu += [value - cpu_mean for value in row.cpu]
        gpu += [value - gpu_mean for value in row.gpu]
    return cpu, gpu
