"""The model computes in half precision (float16) on a processor.

Why it hurts: most processors cannot multiply float16: each number is made a float32 first and a
float16 again afterwards, often by code that nobody has made fast; it may take ten times as long.

What to do: compute in float32 there (`model.float()`, `torch_dtype=torch.float32`), or in bfloat16
where the processor can (`lscpu` tells amx_bf16 or avx512_bf16); float16 is for GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules.float64_model import SHARE_SQL
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

LINE = "busy"
MOST = "info"  # a few processors can
UNLESS = ("hang",)
NEEDS = ("python.torch_module.dtype", "python.torch_step.forward_ns")
OTHERWISE = "the job has no steps"
LIMITS = {
    "half_pct": Limit(50, "of the values of the model that are float16 and on a processor"),
    "model_pct": Limit(50, "of a step spent in model, backward pass and optimizer"),
}
SQL = SHARE_SQL.replace("<kind>", "dtype = 'float16' AND starts_with(device, 'cpu')")


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        fired = row.share_pct >= limits.half_pct and row.model_pct >= limits.model_pct
        yield Verdict(
            row.piece, fired,
            {"float16_values_pct": row.share_pct, "in_the_model_pct": row.model_pct},
            severity="info", readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}",
        )  # fmt: skip
