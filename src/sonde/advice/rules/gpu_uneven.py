"""Some GPUs of the job work much less than others.

Why it hurts: ranks wait for the slowest, or work is shared out unevenly; what the idle ones could
do is paid for and lost.

What to do: give every rank the same amount of work (a sampler that shards evenly, sequences of
similar length, balanced pipeline stages). If one rank is slow at the same work, look at it and at
its machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from sonde.advice.verdict import Limit, Limits, Rows, Verdict, group

COMPARES = True
NEEDS = ("system.gpu.util_pct",)
OTHERWISE = "the job uses fewer than two GPUs"
LIMITS = {
    "skew_pct": Limit(
        20, "percentage points of mean utilisation between the busiest and the idlest GPU"
    ),
    "busy_pct": Limit(30, "only if the busiest GPU is at least this busy"),
}
SQL = """
SELECT {piece} AS piece, host, gpu, COUNT(*) AS readings, AVG(util_pct) AS util_pct
FROM system.gpu WHERE {inside} AND {job_gpu} AND util_pct IS NOT NULL GROUP BY ALL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for piece, gpus in group(rows):
        if len(gpus) < 2:
            continue
        busiest = max(row.util_pct for row in gpus)
        idlest = min(gpus, key=lambda row: row.util_pct)
        fired = busiest - idlest.util_pct >= limits.skew_pct and busiest >= limits.busy_pct
        evidence = {"busiest_pct": busiest, "idlest_pct": idlest.util_pct, "gpus": len(gpus)}
        lost = fmean(busiest - row.util_pct for row in gpus)
        yield Verdict(piece, fired, evidence, lost_pct=lost, who=f"GPU {idlest.gpu}@{idlest.host}",
                      readings=sum(row.readings for row in gpus))  # fmt: skip
