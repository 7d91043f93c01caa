"""A GPU slows itself down: it is too hot, or short of power.

Why it hurts: at a hardware slowdown the clock is half or less, and in a distributed job every rank
waits for this one.

What to do: see `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`; repair cooling and power, move
the job to another machine and have this one checked.

A GPU that works as hard as its power limit lets it is in good health: that is no finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

DANGER = True
NEEDS = ("system.gpu.sm_clock_mhz", "system.gpu.sm_clock_max_mhz")
OTHERWISE = "no GPU of the job was at work"
LIMITS = {
    "share_pct": Limit(1, "of all readings in which the hardware slowed down, at least"),
    "hot_c": Limit(85, "temperature from which it is too hot, if its clock is also lower"),
    "clock_pct": Limit(15, "below the highest clock that counts as lower"),
}
_HALF_PCT = 40  # of the clock lost: what NVIDIA calls a hardware slowdown
# Idle GPUs lower their clocks, and say so as a reason, too; that is no slowdown.
SQL = """
SELECT {piece} AS piece, host, gpu, COUNT(*) AS readings,
       COUNT(*) FILTER (regexp_matches(throttle, 'thermal|brake|slowdown')) AS slowed,
       STRING_AGG(DISTINCT throttle, ', ') AS reasons, MAX(temperature_c) AS hottest,
       MAX(power_w) AS power_w, AVG(sm_clock_mhz) AS clock, MAX(sm_clock_max_mhz) AS clock_max
FROM system.gpu
WHERE {inside} AND {job_gpu} AND sm_clock_mhz IS NOT NULL AND sm_clock_max_mhz > 0
  AND (util_pct >= 10 OR regexp_matches(throttle, 'thermal|brake|slowdown'))
GROUP BY ALL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    found = list(rows)
    sums: dict[tuple[str, int], tuple[int, int]] = {}  # readings, and slowed ones, of each GPU
    for row in found:
        readings, slowed = sums.get((row.host, row.gpu), (0, 0))
        sums[row.host, row.gpu] = (readings + row.readings, slowed + row.slowed)
    for row in found:
        readings, slowed = sums[row.host, row.gpu]
        lost = 100 - 100 * row.clock / row.clock_max
        slow = lost >= limits.clock_pct
        hard = row.slowed > 0 and 100 * slowed / readings >= limits.share_pct
        hot = slow and row.hottest is not None and row.hottest >= limits.hot_c
        level = "critical" if lost > _HALF_PCT else "warning"
        yield Verdict(row.piece, hard or hot, _list_evidence(row), severity=level,
                      readings=row.readings, who=f"GPU {row.gpu}@{row.host}")  # fmt: skip


def _list_evidence(row: Any) -> dict[str, float | int | str | None]:
    found = {
        "reasons": row.reasons, "slowed_pct": 100 * row.slowed / row.readings,
        "clock_mhz": row.clock, "highest_clock_mhz": row.clock_max,
        "max_temperature_c": row.hottest,
        "max_power_w": row.power_w,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}
