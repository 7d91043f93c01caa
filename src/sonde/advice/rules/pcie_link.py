"""A GPU's PCIe link is slower than it could be.

Why it hurts: batches, offloaded tensors and traffic between GPUs go over it; half the lanes is
half the speed.

What to do: see `nvidia-smi -q -d PCIE` under load; reseat the card or move it to a full slot, check
risers and the link speed in the BIOS. In a cloud, replace the machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("system.gpu.pcie_width", "system.gpu.pcie_width_max", "system.gpu.util_pct")
OTHERWISE = "no GPU of the job was busy enough"
LIMITS = {"util_pct": Limit(50, "least utilisation of the GPU: idle links slow down by themselves")}
SQL = """
SELECT {piece} AS piece, host, gpu, COUNT(*) AS readings, AVG(util_pct) AS util_pct,
       MAX(pcie_width) AS width, MAX(pcie_width_max) AS width_max, MAX(pcie_gen) AS gen,
       MAX(pcie_gen_max) AS gen_max
FROM system.gpu
WHERE {inside} AND {job_gpu} AND pcie_width IS NOT NULL AND pcie_width_max IS NOT NULL
GROUP BY ALL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        if row.util_pct is None or row.util_pct < limits.util_pct:
            continue
        slow = row.gen is not None and row.gen_max is not None and row.gen < row.gen_max
        evidence = {"lanes": row.width, "lanes_possible": row.width_max, "generation": row.gen,
                    "generation_possible": row.gen_max}  # fmt: skip
        yield Verdict(row.piece, row.width < row.width_max or slow, evidence, severity="warning",
                      readings=row.readings, who=f"GPU {row.gpu}@{row.host}")  # fmt: skip
