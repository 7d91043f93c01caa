"""The GPU multiplies matrices in full float32, without its tensor cores.

Why it hurts: tensor cores multiply float32 matrices several times as fast as TF32, and bfloat16
ones faster still; without leave for either they are not used.

What to do: `torch.set_float32_matmul_precision("high")` (TF32), or run the model under
`torch.autocast("cuda", torch.bfloat16)`. If the results need all digits, this is the price.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._gpu import LOOP
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("python.torch_precision.tf32_matmul", "python.torch_trace.device_duration")
UNLESS = ("launch_bound", "input_bound", "hang")
OTHERWISE = "the job has no steps on a GPU whose modules were timed"
LIMITS = {
    "least_pct": Limit(30, "of the model's time on the device in layers that multiply matrices"),
    "much_pct": Limit(60, "the same, from which on it is worth a warning"),
    "busy_pct": Limit(80, "utilisation of the GPU below which something else sets the pace"),
}
SQL = f"""
WITH {LOOP},
precision AS (
  SELECT host, pid, ARG_MAX(tf32_matmul, t_ns) AS tf32, ARG_MAX(autocast, t_ns) AS autocast,
         ARG_MAX(capability, t_ns) AS capability
  FROM python.torch_precision GROUP BY 1, 2),
layer AS (
  SELECT host, pid, module, ANY_VALUE(type) AS type, ANY_VALUE(dtype) AS dtype
  FROM python.torch_module GROUP BY 1, 2, 3),
timed AS (
  SELECT {{piece}} AS piece, host, pid,
         SUM(device_duration) FILTER (depth = 0) AS model_s,
         SUM(device_duration) FILTER (
           type IN ('Linear', 'Bilinear', 'MultiheadAttention', 'LSTM', 'GRU')
           AND dtype = 'float32') AS layer_s
  FROM python.torch_trace JOIN layer USING (host, pid, module)
  WHERE {{inside}} AND stage IN ('forward', 'backward') AND device_duration IS NOT NULL
  GROUP BY 1, 2, 3)
SELECT piece, rank, steps, util_pct, 100 * layer_s / model_s AS layers_pct,
       NOT tf32 AND autocast IS NULL AND capability >= 8 AS is_slow
FROM step JOIN precision USING (host, pid) JOIN timed USING (piece, host, pid)
LEFT JOIN gpu USING (piece, host)
WHERE model_s > 0 AND tf32 IS NOT NULL AND capability IS NOT NULL
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        share_pct = min(row.layers_pct or 0.0, 100.0)  # as sums of calls timed one by one
        busy = row.util_pct is not None and row.util_pct >= limits.busy_pct
        yield Verdict(
            row.piece, bool(row.is_slow) and busy and share_pct >= limits.least_pct,
            {"layers_pct": share_pct, "gpu_util_pct": row.util_pct},
            severity="warning" if share_pct >= limits.much_pct else "info", readings=row.steps,
            who="" if row.rank is None else f"rank {row.rank}",
        )  # fmt: skip
