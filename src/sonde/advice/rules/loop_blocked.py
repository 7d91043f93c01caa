"""The event loop is blocked: one callback keeps it, and everything else on it waits.

Why it hurts: an event loop runs one callback at a time. While one computes, sleeps or waits without
`await`, no other task goes on: requests, timers and heartbeats are late by that long.

What to do: `await` an asynchronous version of that call, or give it to a thread
(`await asyncio.to_thread(…)`) or, if it computes in Python, to a process pool; cut long
calculations into parts with `await asyncio.sleep(0)` between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.rules._code import PLACE, show_place
from sonde.advice.verdict import Limit, Limits, Rows, Verdict, group
from sonde.words import shorten_func

NEEDS = ("python.loop_hold.held_ns", "python.event_loop.idle_ns")
LIMITS = {
    "long_s": Limit(0.05, "that one callback keeps the loop, from which it counts as blocked"),
    "wait_s": Limit(0.015, "that one callback waits without `await`, from which it counts so, too"),
    "own_s": Limit(
        0.02, "of it that it computes or waits itself: the rest it stood in a queue for a processor"
    ),
    "share_pct": Limit(10, "of the time in which the loop is blocked so, without that queue"),
    "longest_s": Limit(1, "that one callback keeps the loop, from which once in a piece is enough"),
    "others": Limit(5, "other callbacks for each that blocks the loop: there are some who wait"),
}
# How long a callback kept the loop counts, for that long all others wait; so does what of it the
# callback did itself: it waited for something, or used a processor. On a crowded machine it also
# stands in a queue for a processor: that makes what it does last longer, and is the fault of others
# where it does little. So is the time that it waits for the GIL, of which other rules speak. A
# notebook runs its cells on the loop of its kernel: nobody waits for that. The newest stacks of a
# live job may have no frames yet; so one with such frames tells of the whole loop.
SQL = f"""
WITH kernel AS (
  SELECT DISTINCT host, pid, thread FROM python.loop_hold WHERE stack IN (
    SELECT stack FROM python.frame WHERE file LIKE '%/ipykernel/%' OR file LIKE '%/IPython/%')),
hold AS (
  SELECT {{piece}} AS piece, host, pid, thread, t_ns + dur_ns - held_ns AS since_ns, callback,
         stack, samples, COALESCE(wait, 'cpu') AS kind,
         CASE WHEN wait IS NULL THEN LEAST(dur_ns, cpu_ns) WHEN wait = 'gil' THEN 0 ELSE dur_ns END
           AS own_ns,
         CASE WHEN wait = 'gil' THEN 0 ELSE dur_ns END AS kept_ns
  FROM python.loop_hold WHERE {{inside}}
    AND (host, pid, thread) NOT IN (FROM kernel)),
callback AS (
  SELECT piece, host, pid, thread, since_ns, SUM(own_ns) AS longest_ns,
         SUM(kept_ns) AS longest_kept_ns
  FROM hold GROUP BY ALL
  HAVING (SUM(kept_ns) >= {{long_s}} * 1e9 AND SUM(own_ns) >= {{own_s}} * 1e9)
    OR SUM(own_ns) FILTER (kind NOT IN ('cpu', 'fault')) >= {{wait_s}} * 1e9),
place AS ({PLACE}),
line AS (
  SELECT piece, host, pid, thread, file, lineno, func, callback, kind, SUM(own_ns) AS own_ns,
         SUM(kept_ns) AS kept_ns, COUNT(DISTINCT since_ns) AS times, SUM(samples) AS samples,
         MAX(longest_ns) AS longest_ns, MAX(longest_kept_ns) AS longest_kept_ns
  FROM hold JOIN callback USING (piece, host, pid, thread, since_ns) LEFT JOIN place USING (stack)
  GROUP BY ALL),
blocked AS (
  SELECT piece, host, pid, thread, SUM(own_ns) AS own_ns, SUM(times) AS times,
         SUM(kept_ns) AS kept_ns, SUM(samples) AS samples, MAX(longest_ns) AS longest_ns,
         MAX(longest_kept_ns) AS longest_kept_ns,
         ARG_MAX(struct_pack(file, lineno, func, callback, kind), own_ns) AS most
  FROM line GROUP BY 1, 2, 3, 4),
loop AS (
  SELECT {{piece}} AS piece, host, pid, thread, SUM(wall_ns) AS wall_ns, SUM(idle_ns) AS idle_ns,
         SUM(callbacks) AS callbacks
  FROM python.event_loop WHERE {{inside}} GROUP BY ALL)
SELECT piece, pid, wall_ns::DOUBLE AS wall_ns, idle_ns::DOUBLE AS idle_ns,
       callbacks::BIGINT AS callbacks, own_ns::DOUBLE AS own_ns,
       times::BIGINT AS times, samples::BIGINT AS samples,
       longest_ns::DOUBLE AS longest_ns, longest_kept_ns::DOUBLE AS longest_kept_ns,
       kept_ns::DOUBLE AS kept_ns, most
FROM loop LEFT JOIN blocked USING (piece, host, pid, thread)
"""
_RESTING = 0.99  # a share of the time without callbacks: a server that nobody asks anything
_QUEUED = 0.2  # a share of the blocked time without a processor from which on it is told
_WAITS = {
    "sleep": "sleeps", "network": "waits for the network", "disk": "waits for a disk",
    "child": "waits for a child process", "lock": "waits for a lock", "pipe": "waits for a pipe",
    "poll": "waits for input", "device": "waits for a device", "gil": "waits for the GIL",
    "fault": "waits for memory", "cpu": "computes", "other": "waits",
}  # fmt: skip


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    pieces = [(piece, max(of, key=lambda row: row.own_ns or 0)) for piece, of in group(rows)]
    # What a server does for those who ask is not made better by the hours in which nobody does.
    at_work = [one for one in pieces if (one[1].idle_ns or 0) < _RESTING * (one[1].wall_ns or 0)]
    for piece, row in at_work or pieces:
        yield _judge_loop(piece, row, limits)


def _judge_loop(piece: int, row: Any, limits: Limits) -> Verdict:
    if not row.own_ns or not row.wall_ns:
        return Verdict(piece, False)
    own_pct = min(100.0, 100 * row.own_ns / row.wall_ns)
    # A crowd leaves little of the time to anybody: what it took counts as nobody's.
    able_ns = row.wall_ns - max(0, row.kept_ns - row.own_ns)
    able_pct = min(100.0, 100 * row.own_ns / max(1, able_ns))
    blocked_pct = min(100.0, 100 * row.kept_ns / row.wall_ns)
    is_long = row.longest_ns >= limits.longest_s * 1e9
    if not (able_pct >= limits.share_pct or is_long) or row.callbacks < limits.others * row.times:
        return Verdict(piece, False)
    most = row.most
    func = shorten_func(most["func"] or most["callback"] or "a callback")
    what = f"{func} {_WAITS[most['kind']]}"
    evidence = {
        "blocked_pct": blocked_pct, "blocking_callbacks": row.times,
        "max_longest_ns": row.longest_kept_ns, "all_callbacks": row.callbacks,
    }  # fmt: skip
    if row.kept_ns - row.own_ns > _QUEUED * row.kept_ns:
        evidence["waiting_for_processor_pct"] = blocked_pct - own_pct
    return Verdict(
        piece, True, evidence, lost_pct=own_pct, readings=row.samples, who=f"pid {row.pid}",
        severity="warning" if is_long else None,
        title=f"The event loop is blocked: {what}, and everything else on it waits",
        line=show_place(most["file"], most["lineno"], most["func"]),
    )  # fmt: skip
