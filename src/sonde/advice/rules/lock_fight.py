"""Threads wait for the same lock.

Why it hurts: threads that need one lock most of the time run one after the other, however many
processors there are.

What to do: hold the lock for less (compute before, write after), give each thread or each part of
the data a lock of its own, or hand the work to one thread by a queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._code import PLACE, read_line, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict, group

NEEDS = ("python.stack_sample.idle",)
LIMITS = {
    "waiting_pct": Limit(20, "of each thread's time spent waiting for the lock"),
    "threads": Limit(2, "so many of them, at the same line"),
}
SQL = f"""
WITH sample AS (
  SELECT {{window}} AS w, host, pid, thread, stack, wall_ns, idle FROM python.stack_sample
  WHERE {{inside}}),
place AS ({PLACE}),
line AS (
  SELECT w, host, pid, thread, file, lineno, func, leaf_file, leaf_line, leaf_func,
         SUM(wall_ns) AS waited_ns
  FROM sample JOIN place USING (stack) WHERE idle GROUP BY ALL),
alive AS (
  SELECT w, host, pid, COUNT(DISTINCT thread) AS threads, COUNT(*) AS looks
  FROM sample GROUP BY 1, 2, 3),
waited AS (
  SELECT w, host, pid, file, lineno, func, leaf_file, leaf_line, leaf_func,
         COUNT(*) AS waiters, AVG(waited_ns) / 1e7 / {{window_s}} AS waiting_pct
  FROM line WHERE waited_ns >= {{waiting_pct}} * 1e7 * {{window_s}} GROUP BY ALL)
SELECT w, host, pid, threads, looks, file, lineno, func, leaf_file, leaf_line, leaf_func,
       COALESCE(waiters, 0) AS waiters, waiting_pct
FROM alive LEFT JOIN waited USING (w, host, pid)
"""
# `with lock:`, and not `with open(path):` or `with pool.map(…):`.
_WITH = re.compile(r"with\s+[\w.\[\]'\"]+\s*[:,]|\bacquire\(")
_INSIDE = ("acquire", "__enter__")  # of Python's own locks that are written in Python


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for window, found in group(rows):
        locks = [row for row in found if row.waiters >= limits.threads and _is_lock(row)]
        if not locks:
            yield Verdict(window, False)
            continue
        worst = max(locks, key=lambda row: row.waiters * row.waiting_pct)
        evidence = {
            "waiting_threads": worst.waiters, "waiting_pct": worst.waiting_pct,
            "threads": worst.threads,
        }  # fmt: skip
        yield Verdict(
            window, True, evidence, severity="warning", looks=worst.looks, who=f"pid {worst.pid}",
            line=show_place(worst.file, worst.lineno, worst.func),
        )  # fmt: skip


def _is_lock(row: Any) -> bool:
    """Is it a lock that is waited for there? Only what the line says can tell: a sleep, a read and
    an empty queue look the same from outside."""
    if row.leaf_file.endswith("/threading.py"):
        return row.leaf_func.rpartition(".")[2] in _INSIDE
    return bool(_WITH.search(read_line(row.leaf_file, row.leaf_line)))
