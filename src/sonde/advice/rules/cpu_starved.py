"""The job waits for a processor.

Why it hurts: threads that are ready to run stand in a queue; whatever they do takes longer, and a
loop that feeds a GPU feeds it late.

What to do: use as many busy threads and processes as there are processors: fewer workers,
`torch.set_num_threads`, OMP_NUM_THREADS; or ask for more processors.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "busy"
UNLESS = ("input_bound", "cpu_limit")
NEEDS = ("system.process.run_wait_pct", "system.cpu.busy_pct")
LIMITS = {
    "waiting_pct": Limit(
        40, "of the time in which the job could run that it waits for a processor"
    ),
    "least_pct": Limit(50, "of one thread's time that is lost so, at least"),
    "busy_pct": Limit(85, "use of the processors that the job may use, from which they are short"),
    "times": Limit(2, "times as many threads of the job as processors: it is its own doing"),
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
    for row in rows:
        could_run = row.wait_pct + row.cpu_pct
        waiting_pct = 100 * row.wait_pct / could_run if could_run else 0.0
        # In percent of one processor: nobody knows how busy those are that the job may use.
        used_pct = min(row.busy_pct * row.cores, 100 * row.allowed)
        own_pct = min(100.0, 100 * row.cpu_pct / used_pct) if used_pct else 100.0
        fired = (
            waiting_pct >= limits.waiting_pct
            and row.wait_pct >= limits.least_pct
            and used_pct >= limits.busy_pct * row.allowed
        )
        is_own = own_pct >= limits.own_pct or could_run >= limits.times * 100 * row.allowed
        evidence = {
            "waiting_for_processor_pct": waiting_pct, "job_share_of_use_pct": own_pct,
            "machine_busy_pct": row.busy_pct, "processors": row.allowed, "processes": row.processes,
        }  # fmt: skip
        yield Verdict(
            row.piece, fired, evidence, severity="warning" if is_own else "info",
            readings=row.readings, title="" if is_own else _OTHERS,
            todo="" if is_own else _OTHERS_TODO,
        )  # fmt: skip
