"""The memory in use on a GPU keeps growing.

Why it hurts: it ends in `CUDA out of memory`, often hours into the job; until then the allocator
has less and less to reuse.

What to do: look for tensors that outlive their step: a running loss without `.item()`, outputs
kept in a list, hidden states without `.detach()`, a graph kept by `retain_graph=True`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._code import show_place
from sonde.advice.trend import find_growth
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

ON_GPU = True
NEEDS = ("python.torch_memory.allocated_bytes",)
OTHERWISE = "the job uses no GPU, or for too short a time"
LIMITS = {
    "grown_bytes": Limit(100e6, "growth over the period judged that is worth a warning"),
    "critical_bytes": Limit(1e9, "growth that is critical"),
    "fit": Limit(0.8, "how straight the growth is (R²)"),
    "parts": Limit(12, "parts of the time, with as many steps in each, that are compared"),
    "steps": Limit(50, "fewest steps to judge by"),
    "line_pct": Limit(
        30, "of what was added while PyTorch noted who allocates, at one line, to name the line"
    ),
}
# At the end of a step only what is kept is left. Who allocated it is known where PyTorch noted it,
# from one look to the next: what a line holds more of at the last look than at the one before.
SQL = """
WITH step AS (
  SELECT {piece} AS piece, host, pid, rank, device, allocated_bytes, blocks,
         NTILE({parts}::BIGINT) OVER (PARTITION BY host, pid, device ORDER BY t_ns) AS part
  FROM python.torch_memory WHERE {inside} AND device <> 'cpu'),
part AS (
  SELECT host, pid, device, LIST(bytes ORDER BY part) AS parts,
         ARG_MAX(blocks, part)::DOUBLE - ARG_MIN(blocks, part) AS more_blocks
  FROM (SELECT host, pid, device, part, MIN(allocated_bytes) AS bytes, MIN(blocks) AS blocks
        FROM step GROUP BY ALL)
  GROUP BY 1, 2, 3),
look AS (
  SELECT *, DENSE_RANK() OVER (PARTITION BY host, pid, device ORDER BY t_ns DESC) AS age
  FROM python.cuda_memory WHERE {to_end}),
line AS (
  SELECT host, pid, device, file, lineno, func,
         SUM(CASE WHEN age = 1 THEN alive_bytes ELSE -alive_bytes END)::DOUBLE AS more_bytes
  FROM look WHERE age <= 2
    AND (host, pid, device) IN (SELECT (host, pid, device) FROM look WHERE age = 2)
  GROUP BY ALL),
most AS (
  SELECT host, pid, device, SUM(more_bytes) FILTER (more_bytes > 0) AS all_bytes,
         ARG_MAX(struct_pack(file, lineno, func, more_bytes), more_bytes)
           FILTER (file IS NOT NULL AND more_bytes > 0) AS line
  FROM line GROUP BY 1, 2, 3)
SELECT piece, host, pid, device, ANY_VALUE(rank) AS rank, COUNT(*) AS steps,
       MAX(allocated_bytes) AS bytes, ANY_VALUE(parts) AS parts,
       ANY_VALUE(more_blocks) AS more_blocks, ANY_VALUE(line) AS line,
       ANY_VALUE(all_bytes) AS all_bytes
FROM step JOIN part USING (host, pid, device) LEFT JOIN most USING (host, pid, device)
GROUP BY piece, host, pid, device
"""
_FEW_BLOCKS = 3  # more than before, or fewer: what grows is what was there
_LARGER = (
    "Tensors on a GPU become larger and larger",
    "what is joined with more in each step (torch.cat of outputs or states, a cache of keys and "
    "values) grows until it is cut: give it a limit, make room for all of it once, or move what is "
    "kept to the host.",
    "it ends in `CUDA out of memory` unless the growth has an end; and each time all of it is "
    "copied.",
)
_KEPT = (
    "find who keeps what this line makes (a list, a dict, an attribute, a graph that hangs on a "
    "loss), and drop it, give it a limit, or keep a copy without its graph (`.item()`, "
    "`.detach()`), on the host if it is large"
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    lines: dict[tuple[str, int, str], list[Any]] = defaultdict(list)
    for row in rows:
        lines[row.host, row.pid, row.device].append(row)
    for (_host, pid, device), line in lines.items():
        if sum(row.steps for row in line) < limits.steps:
            continue
        points = list(enumerate(line[0].parts))
        trend = find_growth(points, limits.fit, int(limits.parts))
        growth = 0.0 if trend is None else trend.growth
        blocks = line[0].more_blocks
        is_larger = blocks is not None and blocks < _FEW_BLOCKS
        large, small = ("warning", "info") if is_larger else ("critical", "warning")
        level = large if growth >= limits.critical_bytes else small
        place, kept = _find_line(line[0], limits)
        title, todo, why = _LARGER if is_larger else ("", kept, "")
        who = (
            f"{device} of pid {pid}" if line[0].rank is None else f"{device} of rank {line[0].rank}"
        )
        # A growth is one of the whole time: every piece has the same to say.
        for row in line:
            evidence = {"grown_bytes": growth, "max_allocated_bytes": row.bytes}
            if blocks is not None:
                evidence["more_blocks"] = blocks
            yield Verdict(row.piece, growth >= limits.grown_bytes, evidence, severity=level,
                          readings=row.steps, who=who, title=title, todo=todo,
                          why=why, line=place)  # fmt: skip


def _find_line(row: Any, limits: Limits) -> tuple[str, str]:
    """Return the line that allocates what stays, and what to do about it; empty if unknown."""
    most = row.line
    if most is None or 100 * most["more_bytes"] < limits.line_pct * row.all_bytes:
        return "", ""
    return show_place(most["file"], most["lineno"], most["func"]), _KEPT
