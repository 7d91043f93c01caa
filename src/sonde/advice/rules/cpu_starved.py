"""The job waits for a processor.

Why it hurts: threads that are ready to run stand in a queue; whatever they do takes longer, and a
loop that feeds a GPU feeds it late.

What to do: use as many busy threads and processes as there are processors: fewer workers,
`torch.set_num_threads`, OMP_NUM_THREADS; or ask for more processors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "busy"
LAST = True
UNLESS = ("input_bound", "cpu_limit")
NEEDS = ("system.process.run_wait_pct", "system.cpu.busy_pct")
LIMITS = {
    "waiting_pct": Limit(
        40, "of the time in which the job could run that it waits for a processor"
    ),
    "least_pct": Limit(50, "of one thread's time that is lost so, at least"),
    "busy_pct": Limit(85, "use of the processors that the job may use, from which they are short"),
    "times": Limit(2, "times as many threads of the job as processors: it is its own doing"),
    "part_pct": Limit(25, "of the use that is the job's, below which many threads prove nothing"),
    "own_pct": Limit(60, "of the use of the processors that is the job's own: it is its own doing"),
}
# A container's limit makes threads wait as well; cpu_limit speaks of that.
SQL = """
WITH process AS (
  SELECT {piece} AS piece, host, process, COUNT(*) AS readings, AVG(run_wait_pct) AS wait_pct,
         AVG(user_pct + system_pct) AS cpu_pct
  FROM system.process WHERE {inside} AND run_wait_pct IS NOT NULL GROUP BY ALL),
machine AS (
  SELECT {piece} AS piece, host, AVG(busy_pct) AS busy_pct, MAX(cores) AS cores
  FROM system.cpu WHERE {inside} GROUP BY ALL),
allowed AS (
  SELECT {piece} AS piece, host, MAX(allowed_cores) AS allowed
  FROM system.cgroup WHERE {inside} GROUP BY ALL)
SELECT piece, host, SUM(wait_pct) AS wait_pct, SUM(cpu_pct) AS cpu_pct, MAX(readings) AS readings,
       COUNT(*) AS processes, ANY_VALUE(busy_pct) AS busy_pct, ANY_VALUE(cores) AS cores,
       ANY_VALUE(COALESCE(allowed, cores)) AS allowed
FROM process JOIN machine USING (piece, host) LEFT JOIN allowed USING (piece, host)
GROUP BY piece, host
"""
_OTHERS = "Other programs use the processors that the job waits for"
_OTHERS_TODO = (
    "end or move the other programs (see `top`), give the job processors of its own "
    "(taskset, a CPU set of the container), or wait until they are done"
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    fired = [row for row in rows if _is_short(row, limits)]
    # The pieces agree on whose doing it is, lest a title of one come with the severity of another.
    is_own = 2 * sum(_is_own(row, limits) for row in fired) > len(fired)
    for row in rows:
        evidence = {
            "waiting_for_processor_pct": _find_wait(row), "job_share_of_use_pct": _find_share(row),
            "machine_busy_pct": row.busy_pct, "processors": row.allowed, "processes": row.processes,
        }  # fmt: skip
        yield Verdict(
            row.piece, row in fired, evidence, severity="warning" if is_own else "info",
            readings=row.readings, title="" if is_own else _OTHERS,
            todo="" if is_own else _OTHERS_TODO, is_own=is_own,
        )  # fmt: skip


def _is_short(row: Any, limits: Limits) -> bool:
    return bool(
        _find_wait(row) >= limits.waiting_pct
        and row.wait_pct >= limits.least_pct
        and _find_use(row) >= limits.busy_pct * row.allowed
    )


def _is_own(row: Any, limits: Limits) -> bool:
    """Would the job wait if it were alone? Threads that others keep from running seem to want a
    processor all the time, so their number only counts where the job gets a fair part."""
    share_pct, could_run = _find_share(row), row.wait_pct + row.cpu_pct
    is_crowd = could_run >= limits.times * 100 * row.allowed and share_pct >= limits.part_pct
    return bool(is_crowd or share_pct >= limits.own_pct)


def _find_wait(row: Any) -> float:
    could_run: float = row.wait_pct + row.cpu_pct
    return 100 * row.wait_pct / could_run if could_run else 0.0


def _find_use(row: Any) -> float:
    """Return the use of the processors that the job may use, in percent of one: nobody knows how
    busy these are, only how busy all are."""
    return float(min(row.busy_pct * row.cores, 100 * row.allowed))


def _find_share(row: Any) -> float:
    used_pct = _find_use(row)
    return min(100.0, 100 * row.cpu_pct / used_pct) if used_pct else 100.0
