"""Threads wait for each other to run Python (the GIL).

Why it hurts: only one thread of a process runs Python at a time. Threads that all compute in Python
take turns, and a training loop among them waits for its turn after every call that gave it away.

What to do: compute in processes (multiprocessing, DataLoader workers), or in libraries that give
the GIL away (numpy, torch); keep threads for waiting on files and networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._code import PLACE, SUMS, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict
from sonde.analysis.wait_words import describe_wait

NEEDS = ("python.stack_sample.gil", "python.stack_sample.wait")
BEHIND = ("costly_calls",)
LIMITS = {
    "held_pct": Limit(80, "of the time in which some thread holds the GIL"),
    "waiting_pct": Limit(50, "of the time, added up over threads, spent waiting for it"),
    "share_pct": Limit(5, "of the time in which a thread must hold it to count as a contender"),
    "call_s": Limit(
        0.1, "of processor time, or of waiting, in one call of C that keeps it: that is long"
    ),
    "calls_pct": Limit(20, "of the time in which such calls keep it"),
    "kept_pct": Limit(30, "of a thread's time spent waiting for it meanwhile"),
}
# Where the kernel did not say what a thread waits for, it is the GIL if the thread also runs there:
# at a line at which it holds the GIL part of the time. Who keeps it for long is only asked where
# somebody waits for it. Samples in a row that find the same call of C at the same line are one
# call, as far as can be seen: in a loop, other ones lie in between. A loop that only asks (`while`)
# is no call, and gives the GIL away when others want it. Nor does a lock keep it: whoever wakes
# many threads calls `release` for each, at one line.
SQL = f"""
WITH line AS (
  SELECT piece, host, pid, thread, stack, SUM(rows) AS rows, SUM(wall_ns) AS all_ns,
         COALESCE(SUM(wall_ns) FILTER (gil), 0) AS held_ns,
         COALESCE(SUM(wall_ns) FILTER (wait = 'gil'), 0) AS wanted_ns,
         COALESCE(SUM(wall_ns) FILTER (idle AND wait IS NULL), 0) AS idle_ns
  FROM ({SUMS}) GROUP BY 1, 2, 3, 4, 5),
thread AS MATERIALIZED (
  SELECT piece, host, pid, thread, SUM(rows) AS rows, SUM(held_ns) AS held_ns,
         SUM(all_ns) AS alive_ns,
         SUM(wanted_ns) + COALESCE(SUM(idle_ns) FILTER (held_ns >= 0.05 * all_ns), 0) AS waited_ns
  FROM line GROUP BY 1, 2, 3, 4),
waiter AS (FROM thread WHERE waited_ns >= {{kept_pct}} / 100 * alive_ns),
sample AS (
  SELECT {{piece}} AS piece, t_ns, host, pid, thread, stack, call, wall_ns, cpu_ns, gil, idle, wait,
         stack IS DISTINCT FROM LAG(stack) OVER moments
           OR call IS DISTINCT FROM LAG(call) OVER moments AS is_new
  FROM python.stack_sample SEMI JOIN waiter ON stack_sample.host = waiter.host
    AND stack_sample.pid = waiter.pid AND {{piece}} = waiter.piece
  WHERE {{inside}}
  WINDOW moments AS (PARTITION BY host, pid, thread ORDER BY t_ns)),
stretch AS (
  SELECT piece, host, pid, thread, stack, call, number, SUM(wall_ns) AS wall_ns,
         ARG_MAX(wait, wall_ns) FILTER (idle) AS wait
  FROM (SELECT *, SUM(is_new::INT) OVER (PARTITION BY host, pid, thread ORDER BY t_ns) AS number
        FROM sample)
  WHERE gil AND (call <> 'while' OR idle) AND NOT starts_with(COALESCE(call, ''), '_thread.')
  GROUP BY ALL HAVING GREATEST(SUM(cpu_ns), SUM(wall_ns) FILTER (idle)) >= {{call_s}} * 1e9),
keeper AS (
  SELECT piece, host, pid, ARG_MAX(thread, wall_ns) AS thread, SUM(wall_ns) AS wall_ns,
         ARG_MAX(stack, wall_ns) AS stack, ARG_MAX(call, wall_ns) AS call,
         ARG_MAX(wait, wall_ns) AS wait, MAX(longest_ns) AS longest_ns
  FROM (SELECT piece, host, pid, thread, stack, call, SUM(wall_ns) AS wall_ns,
               ARG_MAX(wait, wall_ns) AS wait, MAX(wall_ns) AS longest_ns
        FROM stretch GROUP BY ALL) GROUP BY 1, 2, 3),
place AS ({PLACE}),
fighter AS (
  SELECT * FROM thread WHERE held_ns >= {{share_pct}} / 100 * {{piece_s}} * 1e9),
top AS (
  SELECT piece, host, pid, ARG_MAX(struct_pack(file, lineno, func), held_ns) AS place
  FROM (SELECT piece, host, pid, file, lineno, func, SUM(held_ns) AS held_ns
        FROM line JOIN place USING (stack) GROUP BY ALL) GROUP BY 1, 2, 3),
kept AS (
  SELECT piece, host, pid, COUNT(*) AS kept_threads, AVG(waited_ns / alive_ns) * 100 AS kept_pct
  FROM waiter JOIN keeper USING (piece, host, pid)
  WHERE waiter.thread <> keeper.thread GROUP BY 1, 2, 3),
long_call AS (
  SELECT keeper.*, kept_threads, kept_pct, file, lineno, func
  FROM keeper JOIN kept USING (piece, host, pid) LEFT JOIN place USING (stack)),
held AS (
  SELECT piece, host, pid, SUM(held_ns) AS held_ns, MAX(alive_ns) AS alive_ns, SUM(rows) AS rows
  FROM thread GROUP BY 1, 2, 3)
SELECT piece, pid, held.rows::BIGINT AS readings, held.held_ns / held.alive_ns * 100 AS held_pct,
       COUNT(fighter.thread) AS threads,
       COALESCE(SUM(waited_ns), 0) / held.alive_ns * 100 AS waiting_pct,
       COALESCE(SUM(waited_ns) FILTER (fighter.thread = pid), 0) / held.alive_ns * 100 AS main_pct,
       ANY_VALUE(place.file) AS file, ANY_VALUE(place.lineno) AS lineno,
       ANY_VALUE(place.func) AS func, ANY_VALUE(long_call) AS long_call,
       ANY_VALUE(long_call.wall_ns) / held.alive_ns * 100 AS calls_pct
FROM held LEFT JOIN fighter USING (piece, host, pid) LEFT JOIN top USING (piece, host, pid)
LEFT JOIN long_call USING (piece, host, pid)
WHERE held.alive_ns >= {{piece_s}} * 0.5e9
GROUP BY piece, pid, held.held_ns, held.alive_ns, held.rows
"""


_LONG = (
    "One call keeps the GIL for long, and the other threads wait for it",
    "what this call does can run in another process (ProcessPoolExecutor), in smaller parts with "
    "something of Python in between, or in a library that gives the GIL away (numpy, hashlib)",
)
_RESTING = (
    "A native call waits, and keeps the GIL meanwhile: the other threads stand still",
    "have the extension give the GIL away around what waits (Py_BEGIN_ALLOW_THREADS, `with nogil` "
    "in Cython, gil_scoped_release in pybind11), call it through ctypes.CDLL and not PyDLL, or "
    "move it to another process",
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for row in rows:
        if row.calls_pct is not None and row.calls_pct >= limits.calls_pct:
            yield _judge_call(row, row.long_call)
            continue
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


def _judge_call(row: Any, call: dict[str, Any]) -> Verdict:
    title, todo = _LONG if call["wait"] is None else _RESTING
    what = {"call": call["call"]} if call["call"] else {}
    waits = {} if call["wait"] is None else {"waits_for": describe_wait((), call["wait"])}
    evidence = {
        **what, **waits, "in_such_calls_pct": row.calls_pct,
        "max_without_a_break_ns": call["longest_ns"], "waiting_threads": call["kept_threads"],
        "of_their_time_waiting_pct": call["kept_pct"],
    }  # fmt: skip
    return Verdict(
        row.piece,
        True,
        evidence,
        severity="warning",
        readings=row.readings,
        who=f"pid {row.pid}",
        title=title,
        todo=todo,
        line=show_place(call["file"], call["lineno"], call["func"]),
    )
