"""The training loop waits for the GPU in the middle of its steps (synchronisation).

Why it hurts: `.item()`, `.cpu()`, `.tolist()`, `nonzero` and `synchronize` wait until the GPU has
done all it was given. After that it has nothing to do until the loop gives it more.

What to do: keep losses and metrics as tensors on the GPU and read them now and then, all at
once; copy with `non_blocking=True`; use `torch.where` instead of `nonzero`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._code import show_place
from sonde.advice.rules._gpu import LOOP
from sonde.advice.verdict import Limit, Limits, Rows, Verdict, group

NEEDS = ("python.cuda_call.dur_ns", "system.gpu.util_pct")
UNLESS = ("debug_mode", "input_bound", "periodic_outliers")
OTHERWISE = "the job has no steps on a GPU"
LIMITS = {
    "waiting_pct": Limit(5, "of the steps that the loop's thread spends in calls that wait"),
    "busy_pct": Limit(90, "utilisation of the GPU from which it does not matter"),
    "copies": Limit(20, "copies to the GPU in a step, from which they are many"),
    "copies_pct": Limit(
        50, "of the copies that there are waits, and of the waits that there are copies, at least"
    ),
}
SQL = f"""
WITH {LOOP},
wait AS (
  SELECT {{piece}} AS piece, host, pid, file, lineno, func, SUM(dur_ns) AS wait_ns,
         SUM(calls) AS waits
  FROM python.cuda_call
  WHERE {{inside}} AND COALESCE(thread, pid) = pid
    AND (kind = 'synchronize' OR direction = 'device to host') GROUP BY ALL),
copy AS (
  SELECT {{piece}} AS piece, host, pid, SUM(dur_ns) AS copy_ns, SUM(calls) AS copies,
         SUM(bytes) AS bytes
  FROM python.cuda_call
  WHERE {{inside}} AND COALESCE(thread, pid) = pid AND direction = 'host to device' GROUP BY ALL)
SELECT piece, host, pid, rank, steps, util_pct, file, lineno, func,
       100 * COALESCE(wait_ns, 0) / all_ns AS share_pct, COALESCE(waits, 0) / steps AS waits,
       100 * COALESCE(copy_ns, 0) / all_ns AS copy_pct, COALESCE(copies, 0) / steps AS copies,
       COALESCE(bytes / copies, 0) AS copy_bytes
FROM step LEFT JOIN gpu USING (piece, host) LEFT JOIN wait USING (piece, host, pid)
LEFT JOIN copy USING (piece, host, pid)
"""
# A copy from memory that is not pinned ends in a wait of its own: there are as many of both.
_MANY_COPIES = (
    "The training loop waits for many small copies to the GPU",
    "put what a step needs together on the host (one tensor with all columns, torch.stack in the "
    "collate function) and copy it once, from pinned memory with `non_blocking=True`; make "
    "constants on the GPU, and keep there what each step needs again.",
    "each copy from ordinary memory has its own call, its own buffer and its own wait, however "
    "little it moves; the GPU gets its work only after the last of them.",
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for piece, found in group(rows):
        by_process: dict[tuple[str, int], list[Any]] = {}
        for row in found:
            by_process.setdefault((row.host, row.pid), []).append(row)
        for lines in by_process.values():
            yield _judge_process(piece, lines, limits)


def _judge_process(piece: int, lines: list[Any], limits: Limits) -> Verdict:
    share_pct, first = sum(row.share_pct for row in lines), lines[0]
    who = "" if first.rank is None else f"rank {first.rank}"
    busy = max(first.util_pct or 0, share_pct) >= limits.busy_pct
    if first.util_pct is None or share_pct < limits.waiting_pct or busy:
        return Verdict(piece, False, who=who)
    known = [row for row in lines if row.file is not None]
    worst = max(known or lines, key=lambda row: row.share_pct)
    # While the loop waits, the GPU works: what it could do besides is the rest of the time.
    most_pct = 100 - max(share_pct, first.util_pct or 0)
    waits = sum(row.waits for row in lines)
    evidence = {
        "waiting_pct": share_pct, "waits_a_step": waits, "lines": len(known),
        "gpu_util_pct": first.util_pct,
    }  # fmt: skip
    title, todo, why = "", "", ""
    fewer, more = sorted((first.copies, waits))
    if first.copies >= limits.copies and 100 * fewer >= limits.copies_pct * more:
        title, todo, why = _MANY_COPIES
        share_pct += first.copy_pct
        evidence |= {"waiting_pct": share_pct, "copies_a_step": first.copies,
                     "one_copy_bytes": first.copy_bytes}  # fmt: skip
    lost_pct = max(0.0, min(share_pct, most_pct))
    return Verdict(piece, True, evidence, lost_pct=lost_pct, readings=first.steps, who=who,
                   title=title, todo=todo, why=why,
                   line=show_place(worst.file, worst.lineno, worst.func))  # fmt: skip
