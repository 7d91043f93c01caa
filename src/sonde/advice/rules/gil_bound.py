"""Threads wait for each other to run Python (the GIL).

Why it hurts: only one thread of a process runs Python at a time. Threads that all compute in Python
take turns, and a training loop among them waits for its turn after every call that gave it away.

What to do: compute in processes (multiprocessing, DataLoader workers), or in libraries that give
the GIL away (numpy, torch); keep threads for waiting on files and networks.
"""

from __future__ import annotations

from collections.abc import Iterator

from sonde.advice.rules._code import PLACE, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict

NEEDS = ("python.stack_sample.gil", "python.stack_sample.wait")
LIMITS = {
    "held_pct": Limit(80, "of the time in which some thread holds the GIL"),
    "waiting_pct": Limit(50, "of the time, added up over threads, spent waiting for it"),
    "share_pct": Limit(5, "of the time in which a thread must hold it to count as a contender"),
}
# Where the kernel did not say what a thread waits for, it is the GIL if the thread also runs there:
# at a line at which it holds the GIL part of the time.
SQL = f"""
WITH sample AS (
  SELECT {{piece}} AS piece, host, pid, thread, stack, wall_ns, gil, idle, wait
  FROM python.stack_sample WHERE {{inside}}),
line AS (
  SELECT piece, host, pid, thread, stack, COUNT(*) AS rows, SUM(wall_ns) AS all_ns,
         COALESCE(SUM(wall_ns) FILTER (gil), 0) AS held_ns,
         COALESCE(SUM(wall_ns) FILTER (wait = 'gil'), 0) AS wanted_ns,
         COALESCE(SUM(wall_ns) FILTER (idle AND wait IS NULL), 0) AS idle_ns
  FROM sample GROUP BY 1, 2, 3, 4, 5),
place AS ({PLACE}),
thread AS (
  SELECT piece, host, pid, thread, SUM(rows) AS rows, SUM(held_ns) AS held_ns,
         SUM(all_ns) AS alive_ns,
         SUM(wanted_ns) + COALESCE(SUM(idle_ns) FILTER (held_ns >= 0.05 * all_ns), 0) AS waited_ns
  FROM line GROUP BY 1, 2, 3, 4),
fighter AS (
  SELECT * FROM thread WHERE held_ns >= {{share_pct}} / 100 * {{piece_s}} * 1e9),
top AS (
  SELECT piece, host, pid, ARG_MAX(struct_pack(file, lineno, func), held_ns) AS place
  FROM (SELECT piece, host, pid, file, lineno, func, SUM(held_ns) AS held_ns
        FROM line JOIN place USING (stack) GROUP BY ALL) GROUP BY 1, 2, 3),
held AS (
  SELECT piece, host, pid, SUM(held_ns) AS held_ns, MAX(alive_ns) AS alive_ns, SUM(rows) AS rows
  FROM thread GROUP BY 1, 2, 3)
SELECT piece, pid, held.rows::BIGINT AS readings, held.held_ns / held.alive_ns * 100 AS held_pct,
       COUNT(fighter.thread) AS threads,
       COALESCE(SUM(waited_ns), 0) / held.alive_ns * 100 AS waiting_pct,
       COALESCE(SUM(waited_ns) FILTER (fighter.thread = pid), 0) / held.alive_ns * 100 AS main_pct,
       ANY_VALUE(place.file) AS file, ANY_VALUE(place.lineno) AS lineno,
       ANY_VALUE(place.func) AS func
FROM held LEFT JOIN fighter USING (piece, host, pid) LEFT JOIN top USING (piece, host, pid)
WHERE held.alive_ns >= {{piece_s}} * 0.5e9
GROUP BY piece, pid, held.held_ns, held.alive_ns, held.rows
"""


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        fired = (
            row.threads >= 2
            and row.held_pct >= limits.held_pct
            and row.waiting_pct >= limits.waiting_pct
        )
        evidence = {
            "threads": row.threads, "gil_held_pct": row.held_pct,
            "waiting_of_all_threads_pct": row.waiting_pct, "main_thread_waiting_pct": row.main_pct,
        }  # fmt: skip
        yield Verdict(
            row.piece, fired, evidence, lost_pct=row.main_pct or None, severity="warning",
            readings=row.readings, who=f"pid {row.pid}",
            line=show_place(row.file, row.lineno, row.func),
        )  # fmt: skip
