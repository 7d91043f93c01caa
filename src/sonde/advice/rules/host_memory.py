"""The machine, or the container, is running out of memory.

Why it hurts: with little left, the kernel drops the pages of files that are read again and again,
then swaps, then kills the largest process; that is usually the job.

What to do: use fewer DataLoader workers or a smaller prefetch_factor, load less at once, or ask
for more memory. To see who has it:
`SELECT process, name, MAX(rss_bytes) FROM system.process GROUP BY ALL`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

DANGER = True
NEEDS = ("system.memory.used_bytes", "system.process.depth", "system.process.pss_bytes",
         "system.cgroup.memory_bytes", "system.pressure.full_pct")  # fmt: skip
LIMITS = {
    "warning_pct": Limit(92, "of memory in use: worth a warning"),
    "critical_pct": Limit(97, "of memory in use: critical"),
    "full_pct": Limit(1, "of the time in which all threads waited for memory: worth a warning"),
    "pressed_pct": Limit(60, "of memory in use, below which such waits have another cause"),
}
# A container's use counts copies of files, which give way; so no more of it than processes have.
# Children count by PSS, as their RSS counts shared pages again.
SQL = """
WITH machine AS (
  SELECT {piece} AS piece, host, COUNT(*) AS readings, MIN(available_bytes) AS available,
         MAX(100 * used_bytes / total_bytes) AS machine_pct
  FROM system.memory WHERE {inside} AND total_bytes > 0 GROUP BY ALL),
each AS (
  SELECT {piece} AS piece, host, pid, process,
         CASE WHEN depth = 0 THEN MAX(rss_bytes) ELSE MAX(pss_bytes) END AS bytes
  FROM system.process WHERE {inside} GROUP BY piece, host, pid, process, depth),
held AS (SELECT piece, host, pid, SUM(bytes) AS held FROM each GROUP BY ALL),
limited AS (
  SELECT {piece} AS piece, host, pid, MAX(memory_bytes) AS used, MIN(memory_limit_bytes) AS allowed,
         SUM(oom_kills) AS kills
  FROM system.cgroup WHERE {inside} GROUP BY ALL),
container AS (
  SELECT piece, host, MAX(100 * LEAST(used, held) / allowed) AS container_pct,
         MIN(allowed) AS allowed, MAX(kills) AS kills
  FROM limited LEFT JOIN held USING (piece, host, pid) GROUP BY piece, host),
waiting AS (
  SELECT {piece} AS piece, host,
         COALESCE(AVG(full_pct) FILTER (scope = 'cgroup'), AVG(full_pct)) AS full_pct
  FROM system.pressure WHERE {inside} AND resource = 'memory' GROUP BY piece, host)
SELECT * FROM machine LEFT JOIN container USING (piece, host) LEFT JOIN waiting USING (piece, host)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        used_pct = max(row.machine_pct, row.container_pct or 0)
        # A kernel that clears pages for a program that asks for many counts as pressure, too.
        waits = (
            row.full_pct is not None
            and row.full_pct >= limits.full_pct
            and used_pct >= limits.pressed_pct
        )
        level = "critical" if used_pct >= limits.critical_pct or row.kills else "warning"
        fired = used_pct >= limits.warning_pct or waits or bool(row.kills)
        yield Verdict(row.piece, fired, _list_evidence(row), severity=level, readings=row.readings)


def _list_evidence(row: Any) -> dict[str, float | int | str | None]:
    found = {
        "max_machine_pct": row.machine_pct, "min_available_bytes": row.available,
        "max_container_pct": row.container_pct, "container_limit_bytes": row.allowed,
        "waiting_pct": row.full_pct, "total_killed": row.kills or None,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}
