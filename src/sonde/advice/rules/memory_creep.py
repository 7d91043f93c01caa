"""The memory of the process keeps growing.

Why it hurts: sooner or later the machine, or the container's limit, is full, and the job is
killed, often hours into its work.

What to do: look for what is kept: losses appended with their graph (use `.item()` or `.detach()`),
caches and lists that only grow, a closure that holds batches. `tracemalloc` or memray name the
lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.trend import find_growth
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("system.process.rss_bytes", "system.process.depth", "system.process.pss_bytes")
OTHERWISE = "the recording is too short"
LIMITS = {
    "grown_bytes": Limit(100e6, "growth over the period judged that is worth a warning"),
    "critical_bytes": Limit(1e9, "growth that is critical"),
    "fit": Limit(0.8, "how straight the growth is (R²)"),
    "pieces": Limit(6, "fewest pieces to judge by"),
}
# Workers share pages with their parent: only PSS shows what they add. It is rarely read.
SQL = """
SELECT {piece} AS piece, host, pid, depth = 0 AS own, process, COUNT(*) AS readings,
       CASE WHEN depth = 0 THEN MEDIAN(rss_bytes) ELSE MEDIAN(pss_bytes) END AS bytes
FROM system.process WHERE {inside}
GROUP BY piece, host, pid, depth, process HAVING bytes IS NOT NULL
"""
_WORKERS = (
    "The memory of the worker processes grows, while the program's own does not",
    "objects made before the fork are copied page by page when a worker counts references to them: "
    "keep the dataset in NumPy, Arrow or tensors instead of Python lists and dicts, or use fewer "
    "workers.",
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    lines: dict[tuple[str, int, bool], dict[int, list[Any]]] = {}
    for row in rows:
        lines.setdefault((row.host, row.pid, row.own), {}).setdefault(row.process, []).append(row)
    for (_host, pid, own), processes in lines.items():
        long = [line for line in processes.values() if len(line) >= limits.pieces]
        points = [[(row.piece, row.bytes) for row in line] for line in long]
        trends = [find_growth(line, limits.fit, int(limits.pieces)) for line in points]
        growth = sum(trend.growth for trend in trends if trend is not None)
        level = "critical" if growth >= limits.critical_bytes else "warning"
        title, todo = ("", "") if own else _WORKERS
        evidence = {"grown_bytes": growth, "size_bytes": sum(line[-1].bytes for line in long),
                    "processes": len(long)}  # fmt: skip
        who = f"pid {pid}" if own else f"workers of pid {pid}"
        pieces = range(min((line[0].piece for line in long), default=0),
                        max((line[-1].piece + 1 for line in long), default=0))  # fmt: skip
        readings = sum(row.readings for line in long for row in line)
        # A growth is one of the whole time: every piece has the same to say.
        for piece in pieces:
            yield Verdict(piece, growth >= limits.grown_bytes, evidence, severity=level, who=who,
                          title=title, todo=todo,
                          readings=max(1, readings // len(pieces)))  # fmt: skip
