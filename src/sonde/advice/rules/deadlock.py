"""The program stands still: its threads wait for locks that nobody gives back.

Why it hurts: no thread of the process can go on, so none will ever give a lock back.

What to do: take locks in the same order everywhere, or one lock for both; use `with` so that an
exception gives it back; see all threads with `sonde stacks TARGET`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._code import PLACE, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

DANGER = True
NEEDS = ("python.stack_sample.wait",)
LIMITS = {"least_s": Limit(8, "that every thread of the process has stood at one line")}
# The kernel says that a thread waits for a lock. Events, queues and other threads' ends are made of
# locks as well, in threading.py: whoever waits for them waits for a thread of this process, too. A
# thread that sleeps, polls, reads or works may yet give a lock back.
SQL = f"""
WITH sample AS (
  SELECT {{piece}} AS piece, host, pid, thread, t_ns, stack, samples, wall_ns,
         COALESCE(idle AND wait = 'lock', FALSE) AS is_waiting
  FROM python.stack_sample WHERE {{inside}}),
last AS (SELECT host, pid, MAX(t_ns) AS end_ns, MAX(piece) AS piece FROM sample GROUP BY 1, 2),
recent AS (
  SELECT host, pid, thread, BOOL_AND(is_waiting) AS is_waiting, COUNT(DISTINCT stack) AS stacks,
         ARG_MAX(stack, t_ns) AS stack, SUM(samples) AS samples
  FROM sample JOIN last USING (host, pid) WHERE t_ns > end_ns - {{least_s}} * 1e9
  GROUP BY 1, 2, 3),
stood AS (
  SELECT host, pid, thread, stack, SUM(wall_ns) / 1e9 AS stood_s FROM sample GROUP BY 1, 2, 3, 4),
name AS (SELECT host, pid, thread, MAX(name) AS name FROM python.thread GROUP BY 1, 2, 3),
place AS ({PLACE})
SELECT last.piece, host, pid, thread, is_waiting AND stacks = 1 AS is_waiting, stood_s, name, file,
       lineno, func, leaf_file, samples
FROM recent JOIN last USING (host, pid) JOIN stood USING (host, pid, thread, stack)
LEFT JOIN place USING (stack) LEFT JOIN name USING (host, pid, thread)
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    by_process: dict[tuple[str, int], list[Any]] = {}
    for row in rows:
        by_process.setdefault((row.host, row.pid), []).append(row)
    for threads in by_process.values():
        yield _judge_process(threads, limits)


def _judge_process(threads: list[Any], limits: Limits) -> Verdict:
    first = threads[0]
    locked = [row for row in threads if row.is_waiting and _is_lock(row)]
    stands = all(row.is_waiting and row.stood_s >= limits.least_s for row in threads)
    if not locked or not stands:
        return Verdict(first.piece, False, who=f"pid {first.pid}")
    places = [
        f"{row.name or row.thread} at {show_place(row.file, row.lineno, row.func)}"
        for row in sorted(locked, key=lambda row: -row.stood_s)
    ]
    evidence = {
        "stands_since_ns": 1e9 * min(row.stood_s for row in threads), "threads": len(threads),
        "waiting_for_locks": len(locked), "what": "; ".join(places[:8]),
    }  # fmt: skip
    return Verdict(
        first.piece, True, evidence, severity="critical",
        readings=min(int(row.samples) for row in threads), who=f"pid {first.pid}",
        line=show_place(locked[0].file, locked[0].lineno, locked[0].func),
    )  # fmt: skip


def _is_lock(row: Any) -> bool:
    """Return whether the program's own line takes the lock."""
    return row.leaf_file is not None and not row.leaf_file.endswith("/threading.py")
