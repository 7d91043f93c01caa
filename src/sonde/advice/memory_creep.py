"""The memory of the process grows and grows.

Why it hurts: sooner or later the machine, or the container's limit, is full, and the job is
killed, often hours into its work.

What to do: look for what is kept: losses appended with their graph (use `.item()` or `.detach()`),
caches and lists that only grow, a closure that holds batches. `tracemalloc` or memray name the
lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from sonde.trend import find_growth
from sonde.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("system.process.rss_bytes", "system.process.depth", "system.process.pss_bytes")
OTHERWISE = "the recording is too short"
LIMITS = {
    "grown_bytes": Limit(100e6, "grown by so much in the time judged: worth a warning"),
    "critical_bytes": Limit(1e9, "grown by so much: critical"),
    "fit": Limit(0.8, "how straight the growth is (R²)"),
    "windows": Limit(6, "at least so many windows"),
}
# Workers share pages with their parent: only PSS tells what they add. It is looked at seldom.
SQL = """
WITH each AS (
  SELECT {window} AS w, host, pid, depth = 0 AS own, process, COUNT(*) AS looks,
         CASE WHEN depth = 0 THEN MEDIAN(rss_bytes) ELSE MEDIAN(pss_bytes) END AS bytes
  FROM system.process WHERE {inside} GROUP BY w, host, pid, depth, process)
SELECT w, host, pid, own, SUM(looks)::BIGINT AS looks, AVG(bytes) AS bytes, COUNT(*) AS processes
FROM each WHERE bytes IS NOT NULL GROUP BY ALL
"""
_WORKERS = (
    "The memory of the worker processes grows, while the program's own does not",
    "objects made before the fork are copied page by page when a worker counts references to them: "
    "keep the dataset in NumPy, Arrow or tensors instead of Python lists and dicts, or use fewer "
    "workers.",
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    lines: dict[tuple[str, int, bool], list[Any]] = defaultdict(list)
    for row in rows:
        lines[row.host, row.pid, row.own].append(row)
    for (_host, pid, own), line in lines.items():
        if len(line) < limits.windows:
            continue
        trend = find_growth([(row.w, row.bytes) for row in line], limits.fit, int(limits.windows))
        growth = 0.0 if trend is None else trend.growth * (1 if own else line[-1].processes)
        grows = growth >= limits.grown_bytes
        title, todo = ("", "") if own else _WORKERS
        level = "critical" if growth >= limits.critical_bytes else "warning"
        for before, row in zip([line[0], *line], line, strict=False):
            evidence = {"grown_bytes": growth, "max_size_bytes": row.bytes * row.processes}
            fired = grows and (row.bytes > before.bytes or row is line[0])
            who = f"pid {pid}" if own else f"workers of pid {pid}"
            yield Verdict(row.w, fired, evidence, severity=level, looks=row.looks, title=title,
                          todo=todo, who=who)  # fmt: skip
