"""Communication takes much of each step, with nothing to hide it behind.

Why it hurts: while gradients or parameters travel, the ranks wait; more ranks make it worse.

What to do: let it overlap with the backward pass (DDP does, with a fitting bucket_cap_mb and
gradient_as_bucket_view=True), send less (bf16 gradients, accumulate over several steps under
`no_sync()`), or use a faster link between the machines.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._ranks import COVERED
from sonde.advice.verdict import LEVELS, Limit, Limits, Rows, Verdict

LINE = "waiting"
COMPARES = True
CROWD = "info"
NEEDS = (
    "python.collective.dur_ns", "python.torch_step.dur_ns", "python.stack_sample.idle",
    "system.process.run_wait_pct", "system.cpu.busy_pct",
)  # fmt: skip
LIMITS = {
    "exposed_pct": Limit(20, "of a step in which ranks wait for data to arrive"),
    "queue_pct": Limit(
        40, "of one thread's time that a rank waits for a processor, from which that is its trouble"
    ),
    "busy_pct": Limit(85, "use of the processors that a rank may use, from which they are short"),
}
# The last rank to arrive waits for nobody, so the least time of all ranks is that of the transfer.
# The part of it in which the loop's thread does not sleep is hidden behind work; what it sleeps for
# outside of collectives, such as data, is not their doing. If a device communicates, the host
# cannot see this. Where processors are short, what sends and receives stands in a queue as well.
SQL = f"""
WITH step AS (
  SELECT {{piece}} AS piece, host, pid, rank, step, dur_ns FROM python.torch_step
  WHERE {{inside}} AND {{main_step}} AND ended_by <> 'end' AND rank IS NOT NULL),
covered AS ({COVERED}),
least AS (
  SELECT piece, step, MIN(s) AS travel_s, MAX(dur_ns) / 1e9 AS step_s
  FROM step JOIN covered USING (rank, step) GROUP BY piece, step
  HAVING COUNT(DISTINCT rank) = (SELECT COUNT(DISTINCT rank) FROM step)),
sample AS (
  SELECT {{piece}} AS piece, host, pid, rank, t_ns, wall_ns, idle FROM python.stack_sample
  WHERE {{inside}} AND thread = pid AND rank IS NOT NULL),
awake AS (  -- the rank that sleeps least; to look at one of a thousand is enough
  SELECT piece, ARG_MIN(rank, idle_ns) AS rank
  FROM (SELECT piece, rank, COALESCE(SUM(wall_ns) FILTER (idle), 0) AS idle_ns
        FROM sample GROUP BY piece, rank)
  GROUP BY piece),
call AS (
  SELECT host, pid, t_ns,
         MAX(t_ns + dur_ns) OVER (PARTITION BY host, pid ORDER BY t_ns) AS end_ns
  FROM python.collective
  WHERE {{inside}} AND state <> 'running' AND rank IN (SELECT rank FROM awake)),
sleep AS (
  SELECT piece, 100 * COALESCE(SUM(wall_ns) FILTER (idle AND one.t_ns <= end_ns), 0)
                / SUM(wall_ns) AS idle_pct
  FROM (SELECT sample.* FROM sample JOIN awake USING (piece, rank)) AS one
  ASOF LEFT JOIN call ON call.host = one.host AND call.pid = one.pid AND one.t_ns >= call.t_ns
  GROUP BY piece),
process AS (
  SELECT {{piece}} AS piece, host, process, AVG(run_wait_pct) AS queue_pct FROM system.process
  WHERE {{inside}} AND (host, process) IN (SELECT (host, pid) FROM step) GROUP BY ALL),
machine AS (
  SELECT {{piece}} AS piece, host, AVG(busy_pct) * MAX(cores) AS used_pct, MAX(cores) AS cores
  FROM system.cpu WHERE {{inside}} GROUP BY ALL),
allowed AS (
  SELECT {{piece}} AS piece, host, MAX(allowed_cores) AS allowed
  FROM system.cgroup WHERE {{inside}} GROUP BY ALL),
short AS (
  SELECT piece, MAX(queue_pct) AS queue_pct
  FROM process JOIN machine USING (piece, host) LEFT JOIN allowed USING (piece, host)
  WHERE used_pct >= {{busy_pct}} * COALESCE(allowed, cores) GROUP BY piece)
SELECT piece, COUNT(*) AS steps, 100 * SUM(travel_s) / SUM(step_s) AS travel_pct,
       ANY_VALUE(idle_pct) AS idle_pct, AVG(step_s) * 1e9 AS step_ns,
       ANY_VALUE(queue_pct) AS queue_pct
FROM least JOIN sleep USING (piece) LEFT JOIN short USING (piece)
WHERE (SELECT COUNT(DISTINCT rank) FROM step) > 1
  AND NOT EXISTS (SELECT 1 FROM python.collective WHERE device_dur_ns IS NOT NULL)
GROUP BY piece
"""
_SHORT = "Ranks wait for each other's data, and for processors"
_SHORT_TODO = (
    "give each rank processors of its own before anything else (fewer ranks or threads on this "
    "machine, nothing else beside them); how much is lost to communication shows only then"
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    found = [(row, min(row.travel_pct, row.idle_pct)) for row in rows]
    fired = [row for row, exposed_pct in found if exposed_pct >= limits.exposed_pct]
    # The pieces agree on it, lest one of them make the others an alarm.
    is_short = 2 * sum((row.queue_pct or 0) >= limits.queue_pct for row in fired) > len(fired)
    for row, exposed_pct in found:
        evidence = {"travelling_pct": row.travel_pct, "exposed_pct": exposed_pct,
                    "step_ns": row.step_ns}  # fmt: skip
        if is_short and row.queue_pct is not None:
            evidence["waiting_for_processor_pct"] = row.queue_pct
        yield Verdict(
            row.piece, exposed_pct >= limits.exposed_pct, evidence, lost_pct=exposed_pct,
            readings=row.steps, title=_SHORT if is_short else "", todo=_SHORT_TODO * is_short,
            most=LEVELS[0] if is_short else LEVELS[-1],
        )  # fmt: skip
