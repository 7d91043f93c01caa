"""The machine is running out of memory.

Why it hurts: with little left, the kernel drops the pages of files that are read again and again,
then swaps, then kills the largest process; that is usually the job.

What to do: use fewer DataLoader workers or a smaller prefetch_factor, load less at once, or ask for
more memory. Who has it: `SELECT process, name, MAX(rss_bytes) FROM system.process GROUP BY ALL`.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.verdict import Limit, Limits, Rows, Verdict

DANGER = True
NEEDS = ("system.memory.used_bytes",)
LIMITS = {
    "warning_pct": Limit(92, "of memory in use: worth a warning"),
    "critical_pct": Limit(97, "of memory in use: critical"),
}
SQL = """
SELECT {window} AS w, host, COUNT(*) AS looks, MAX(100 * used_bytes / total_bytes) AS used_pct,
       MIN(available_bytes) AS available_bytes
FROM system.memory WHERE {inside} AND total_bytes > 0 GROUP BY ALL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        level = "critical" if row.used_pct >= limits.critical_pct else "warning"
        evidence = {"max_used_pct": row.used_pct, "min_available_bytes": row.available_bytes}
        fired = row.used_pct >= limits.warning_pct
        yield Verdict(row.w, fired, evidence, severity=level, looks=row.looks)
