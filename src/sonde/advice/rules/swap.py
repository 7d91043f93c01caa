"""The machine swaps memory in from disk.

Why it hurts: a page that comes back from disk takes a thousand times as long as one in memory, and
every thread that needs it waits.

What to do: use fewer DataLoader workers, a smaller prefetch_factor or cache, or more memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "waiting"
NEEDS = ("system.memory.swap_in_bytes",)
LIMITS = {
    "rate_bytes": Limit(1_000_000, "swapped in per second, at least"),
    "high_bytes": Limit(50_000_000, "swapped in per second that is critical"),
}
SQL = """
SELECT {piece} AS piece, host, COUNT(*) AS readings, SUM(swap_in_bytes) / {piece_s} AS rate,
       SUM(swap_in_bytes) AS swapped, MAX(swap_used_bytes) AS used
FROM system.memory WHERE {inside} AND swap_in_bytes IS NOT NULL GROUP BY ALL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        level = "critical" if row.rate >= limits.high_bytes else "warning"
        evidence = {"in_a_second_bytes": row.rate, "total_swapped_in_bytes": row.swapped,
                    "max_swap_used_bytes": row.used}  # fmt: skip
        yield Verdict(row.piece, row.rate >= limits.rate_bytes, evidence, severity=level,
                      readings=row.readings)  # fmt: skip
