"""The training loop waits for the GPU in the middle of its steps (synchronisation).

Why it hurts: `.item()`, `.cpu()`, `.tolist()`, `nonzero` and `synchronize` wait until the GPU has
done all it was given. After that it has nothing to do until the loop gives it more.

What to do: keep losses and metrics as tensors on the GPU and read them now and then, all at
once; copy with `non_blocking=True`; use `torch.where` instead of `nonzero`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._code import PLACE, read_line, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict, group

NEEDS = ("python.torch_memory.device", "python.stack_sample.gil", "system.gpu.util_pct")
MOST = "warning"
LIMITS = {
    "waiting_pct": Limit(5, "of the time that the loop's thread spends at such lines"),
    "busy_pct": Limit(90, "utilisation of the GPU from which it does not matter"),
}
# Such a call gives the GIL away while it waits, whether it sleeps or spins. That it was this call
# is not measured but read from the line, so this is never more than a warning, and a line counts
# only if all that it calls is known: `model(x).cpu()` may compute as well.
SQL = f"""
WITH job AS (
  SELECT DISTINCT host, pid FROM python.torch_memory WHERE device LIKE 'cuda%'),
step AS (
  SELECT {{piece}} AS piece, host, pid, ANY_VALUE(rank) AS rank, COUNT(*) AS steps
  FROM python.torch_step WHERE {{inside}} GROUP BY 1, 2, 3),
gpu AS (
  SELECT {{piece}} AS piece, host, AVG(util_pct) AS util_pct
  FROM system.gpu WHERE {{inside}} AND {{job_gpu}} GROUP BY 1, 2),
sample AS (
  SELECT {{piece}} AS piece, host, pid, stack, wall_ns, gil FROM python.stack_sample
  WHERE {{inside}} AND thread = pid),
alive AS (SELECT piece, host, pid, SUM(wall_ns) AS alive_ns FROM sample GROUP BY 1, 2, 3),
place AS ({PLACE}),
line AS (
  SELECT piece, host, pid, file, lineno, func, leaf_file, leaf_line, leaf_func,
         SUM(wall_ns) AS wall_ns
  FROM sample JOIN place USING (stack) WHERE NOT gil GROUP BY ALL)
SELECT piece, host, pid, rank, steps, util_pct, file, lineno, func, leaf_file, leaf_line, leaf_func,
       100 * COALESCE(wall_ns, 0) / alive_ns AS share_pct
FROM step JOIN job USING (host, pid) JOIN alive USING (piece, host, pid)
LEFT JOIN gpu USING (piece, host)
LEFT JOIN (SELECT * FROM line WHERE wall_ns >= 5e6 * {{piece_s}}) USING (piece, host, pid)
"""
_WAITING = frozenset(("item", "cpu", "tolist", "numpy", "nonzero", "synchronize"))
_CHEAP = frozenset((
    "add_scalar", "all", "any", "append", "argmax", "debug", "detach", "eq", "extend", "float",
    "format", "info", "int", "isfinite", "isinf", "isnan", "len", "log", "max", "mean", "min",
    "print", "round", "str", "sum", "update", "write",
))  # fmt: skip


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for piece, found in group(rows):
        by_process: dict[tuple[str, int], list[Any]] = {}
        for row in found:
            by_process.setdefault((row.host, row.pid), []).append(row)
        for lines in by_process.values():
            yield _judge_process(piece, lines, limits)


def _judge_process(piece: int, lines: list[Any], limits: Limits) -> Verdict:
    points = [row for row in lines if row.file is not None and _waits(row)]
    share_pct = sum(row.share_pct for row in points)
    first, util_pct = lines[0], lines[0].util_pct
    busy = util_pct is not None and util_pct >= limits.busy_pct
    who = "" if first.rank is None else f"rank {first.rank}"
    if not points or share_pct < limits.waiting_pct or busy:
        return Verdict(piece, False, who=who)
    worst = max(points, key=lambda row: row.share_pct)
    lost_pct = share_pct if util_pct is None else min(share_pct, 100 - util_pct)
    evidence = {
        "waiting_pct": share_pct, "lines": len(points), "gpu_util_pct": util_pct,
        "what": read_line(worst.file, worst.lineno),
    }  # fmt: skip
    return Verdict(piece, True, evidence, lost_pct=lost_pct, readings=first.steps, who=who,
                   line=show_place(worst.file, worst.lineno, worst.func))  # fmt: skip


def _waits(row: Any) -> bool:
    """Return whether the line does nothing but wait for the GPU and handle what it has read."""
    if row.leaf_func.rpartition(".")[2] == "synchronize":
        return True
    called = set(_list_calls(read_line(row.file, row.lineno)))
    return bool(called & _WAITING) and called <= _WAITING | _CHEAP


def _list_calls(line: str) -> Iterator[str]:
    """Yield the names of what a line calls; none if it is only a part of a statement."""
    try:
        tree = ast.parse(line + " pass" if line.endswith(":") else line)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield str(getattr(node.func, "attr", None) or getattr(node.func, "id", "?"))
