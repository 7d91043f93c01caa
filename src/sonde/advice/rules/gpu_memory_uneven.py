"""The GPUs of the job hold unequal amounts of memory.

Why it hurts: the fullest GPU sets the batch size for all; the room on the others is paid for and
not used. It is typical of DataParallel, whose first GPU gathers all outputs and gradients.

What to do: use DistributedDataParallel or FSDP (one process a GPU), shard the data and the
optimizer evenly, and see that nothing else, such as evaluation or logging, keeps tensors on one
GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.patterns import is_uneven
from sonde.advice.verdict import Limit, Limits, Rows, Verdict, group

COMPARES = True
NEEDS = ("system.gpu.memory_used_bytes", "system.gpu.memory_total_bytes")
OTHERWISE = "the job uses fewer than two GPUs"
LIMITS = {
    "skew": Limit(
        0.15, "difference in memory use, as a share of a GPU's memory or of the fullest GPU's use"
    ),
    "worst": Limit(0.3, "only if the fullest GPU uses more than this"),
    "tight": Limit(0.8, "worth a warning if the fullest GPU uses more than this"),
    "compat": Limit(0, "1: judge all GPUs at any use, as OpenPAI's profiler does"),
}
SQL = """
SELECT {piece} AS piece, host, gpu, COUNT(*) AS readings,
       AVG(memory_used_bytes / memory_total_bytes) AS used
FROM system.gpu
WHERE {inside} AND memory_total_bytes > 0 AND memory_used_bytes IS NOT NULL
  AND ({job_gpu} OR {compat} = 1)
GROUP BY ALL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for piece, gpus in group(rows):
        if len(gpus) < 2 and not limits.compat:
            continue  # one GPU is as even as can be: nothing to judge
        used = [row.used for row in gpus]
        fired = is_uneven(used, limits.skew) and (limits.compat or max(used) > limits.worst)
        fullest = max(gpus, key=lambda row: row.used)
        level = "warning" if max(used) > limits.tight else "info"
        evidence = {"fullest_pct": 100 * max(used), "emptiest_pct": 100 * min(used)}
        who = f"GPU {fullest.gpu}@{fullest.host}"
        yield Verdict(piece, bool(fired), evidence, severity=level, who=who,
                      readings=sum(row.readings for row in gpus))  # fmt: skip
