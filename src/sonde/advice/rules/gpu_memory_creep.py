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

ON_GPU = True
NEEDS = ("python.torch_memory.allocated_bytes",)
OTHERWISE = "the job uses no GPU, or for too short a time"
LIMITS = {
    "grown_bytes": Limit(100e6, "growth over the period judged that is worth a warning"),
    "critical_bytes": Limit(1e9, "growth that is critical"),
    "fit": Limit(0.8, "how straight the growth is (R²)"),
    "parts": Limit(12, "parts of the time, with as many steps in each, that are compared"),
    "steps": Limit(50, "fewest steps to judge by"),
}
# At the end of a step only what is kept is left.
SQL = """
WITH step AS (
  SELECT {piece} AS piece, host, pid, rank, device, allocated_bytes,
         NTILE({parts}::BIGINT) OVER (PARTITION BY host, pid, device ORDER BY t_ns) AS part
  FROM python.torch_memory WHERE {inside} AND device <> 'cpu'),
part AS (
  SELECT host, pid, device, LIST(bytes ORDER BY part) AS parts
  FROM (SELECT host, pid, device, part, MIN(allocated_bytes) AS bytes FROM step GROUP BY ALL)
  GROUP BY 1, 2, 3)
SELECT piece, host, pid, device, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
       MAX(allocated_bytes) AS bytes, ANY_VALUE(parts) AS parts
FROM step JOIN part USING (host, pid, device) GROUP BY piece, host, pid, device
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    lines: dict[tuple[str, int, str], list[Any]] = defaultdict(list)
    for row in rows:
        lines[row.host, row.pid, row.device].append(row)
    for (_host, pid, device), line in lines.items():
        if sum(row.steps for row in line) < limits.steps:
            continue
        points = list(enumerate(line[0].parts))
        trend = find_growth(points, limits.fit, int(limits.parts))
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
