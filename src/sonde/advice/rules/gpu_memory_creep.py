"""The memory in use on a GPU keeps growing.

Why it hurts: it ends in `CUDA out of memory`, often hours into the job; until then the allocator
has less and less to reuse.

What to do: look for tensors that outlive their step: a running loss without `.item()`, outputs
kept in a list, hidden states without `.detach()`, a graph kept by `retain_graph=True`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from sonde.advice.trend import find_growth
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("python.torch_memory.allocated_bytes",)
OTHERWISE = "the job uses no GPU, or for too short a time"
LIMITS = {
    "grown_bytes": Limit(100e6, "growth over the period judged that is worth a warning"),
    "critical_bytes": Limit(1e9, "growth that is critical"),
    "fit": Limit(0.8, "how straight the growth is (R²)"),
    "pieces": Limit(6, "fewest pieces to judge by"),
    "steps": Limit(50, "fewest steps to judge by"),
}
# At the end of a step only what is kept is left.
SQL = """
SELECT {piece} AS piece, host, pid, rank, device, COUNT(*) AS steps, MIN(allocated_bytes) AS bytes
FROM python.torch_memory WHERE {inside} AND device <> 'cpu' GROUP BY ALL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    lines: dict[tuple[str, int, str], list[Any]] = defaultdict(list)
    for row in rows:
        lines[row.host, row.pid, row.device].append(row)
    for (_host, pid, device), line in lines.items():
        if len(line) < limits.pieces or sum(row.steps for row in line) < limits.steps:
            continue
        points = [(row.piece, row.bytes) for row in line]
        trend = find_growth(points, limits.fit, int(limits.pieces))
        growth = 0.0 if trend is None else trend.growth
        level = "critical" if growth >= limits.critical_bytes else "warning"
        who = (
            f"{device} of pid {pid}" if line[0].rank is None else f"{device} of rank {line[0].rank}"
        )
        # A growth is one of the whole time: every piece has the same to say.
        for row in line:
            evidence = {"grown_bytes": growth, "max_allocated_bytes": row.bytes}
            yield Verdict(row.piece, growth >= limits.grown_bytes, evidence, severity=level,
                          readings=row.steps, who=who)  # fmt: skip
