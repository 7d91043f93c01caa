"""A GPU's memory has errors that could not be corrected.

Why it hurts: numbers may be wrong, and the driver may end the job at any moment.

What to do: save a checkpoint, move the job to another machine, and have this GPU checked
(`nvidia-smi -q -d ECC,ROW_REMAPPER`).
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

DANGER = True
NEEDS = ("system.gpu.ecc_uncorrected",)
OTHERWISE = "the job uses no GPU"
LIMITS = {"errors": Limit(1, "new errors while the job ran, at least")}
SQL = """
SELECT {piece} AS piece, host, gpu, SUM(ecc_uncorrected)::BIGINT AS errors,
       SUM(ecc_corrected)::BIGINT AS corrected
FROM system.gpu WHERE {inside} AND {job_gpu} AND ecc_uncorrected IS NOT NULL GROUP BY ALL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        evidence = {"total_errors": row.errors, "total_corrected": row.corrected}
        # One error is enough; it does not take twenty readings to be sure.
        yield Verdict(row.piece, row.errors >= limits.errors, evidence, severity="critical",
                      readings=20, who=f"GPU {row.gpu}@{row.host}")  # fmt: skip
