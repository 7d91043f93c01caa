"""The container's CPU limit stops the job again and again.

Why it hurts: when the quota of a period is used up, all threads stand still until the next one,
including the one that feeds the GPU.

What to do: ask for more CPU, or use fewer threads and workers than the limit has cores
(`torch.set_num_threads`, OMP_NUM_THREADS, num_workers): `os.cpu_count()` is how many the
machine has, not how many you may use.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "busy"
NEEDS = ("system.cgroup.throttled_pct",)
LIMITS = {
    "throttled_pct": Limit(10, "of the periods stopped early: worth a warning"),
    "critical_pct": Limit(50, "of the periods stopped early: critical"),
}
SQL = """
SELECT {piece} AS piece, host, pid, COUNT(*) AS readings, AVG(throttled_pct) AS throttled_pct,
       AVG(user_pct + system_pct) AS cpu_pct, MAX(cpu_limit) AS cpu_limit
FROM system.cgroup WHERE {inside} AND throttled_pct IS NOT NULL GROUP BY ALL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        evidence = {"periods_stopped_pct": row.throttled_pct, "cpu_pct": row.cpu_pct,
                    "limit_cores": row.cpu_limit}  # fmt: skip
        level = "critical" if row.throttled_pct >= limits.critical_pct else "warning"
        fired = row.throttled_pct >= limits.throttled_pct
        yield Verdict(row.piece, fired, evidence, severity=level, readings=row.readings)
