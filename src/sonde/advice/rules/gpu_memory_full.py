"""The GPU's memory is full, but the GPU has time to spare.

Why it hurts: the batch cannot grow, although the GPU could do more at once.

What to do: make room: activation checkpointing, mixed precision, a sharded or offloaded optimizer,
`set_to_none` gradients; then raise the batch size. With a framework that takes all memory at its
start (JAX, TensorFlow, vLLM), the GPU looks full from outside: look at the framework's own numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._gpu import USE
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("system.gpu.util_pct", "system.gpu.memory_used_bytes")
UNLESS = ("input_bound",)
OTHERWISE = "the job uses no GPU"
LIMITS = {
    "util_pct": Limit(85, "GPUs with a mean utilisation below this have time to spare"),
    "low_pct": Limit(50, "mean utilisation below which it is worth a warning"),
    "memory": Limit(0.8, "share of memory in use from which a GPU is full"),
    "compat": Limit(0, "1: judge GPU 0 alone, as OpenPAI's profiler does"),
}
SQL = USE


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        fired = row.util_pct < limits.util_pct and row.used >= limits.memory
        level = "warning" if row.util_pct < limits.low_pct else "info"
        evidence = {"util_pct": row.util_pct, "memory_pct": 100 * row.used}
        yield Verdict(
            row.piece, fired, evidence, severity=level, readings=row.readings,
            who=f"GPU {row.gpu}@{row.host}",
        )  # fmt: skip
