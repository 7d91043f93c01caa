"""The GPU says it is busy, but draws little power.

Why it hurts: utilisation only says that some kernel ran. Low power beside it means that most of
the chip did nothing: small kernels, waiting inside a collective, or memory-bound work.

What to do: look at the kernels with `sonde capture TARGET`: fuse small ones (torch.compile, CUDA
graphs), raise the batch size, use bf16 on tensor cores; if it is a collective, find the slow rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("system.gpu.util_pct", "system.gpu.power_w", "system.gpu.power_limit_w")
OTHERWISE = "the job uses no GPU"
LIMITS = {
    "util_pct": Limit(90, "mean utilisation from which a GPU says that it is busy"),
    "power_pct": Limit(50, "of its power limit, below which the mean power says otherwise"),
}
SQL = """
SELECT {piece} AS piece, host, gpu, COUNT(*) AS readings, AVG(util_pct) AS util_pct,
       AVG(power_w) AS power_w, MAX(power_limit_w) AS power_limit_w
FROM system.gpu
WHERE {inside} AND {job_gpu} AND util_pct IS NOT NULL AND power_w IS NOT NULL AND power_limit_w > 0
GROUP BY ALL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        share_pct = 100 * row.power_w / row.power_limit_w
        fired = row.util_pct >= limits.util_pct and share_pct < limits.power_pct
        evidence = {"util_pct": row.util_pct, "power_w": row.power_w,
                    "power_limit_w": row.power_limit_w}  # fmt: skip
        yield Verdict(row.piece, fired, evidence, severity="info", readings=row.readings,
                      who=f"GPU {row.gpu}@{row.host}")  # fmt: skip
