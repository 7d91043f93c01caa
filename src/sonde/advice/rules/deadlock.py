"""Threads wait for locks that nobody gives back: for each other's, or all of them.

Why it hurts: threads that wait for each other cannot go on, so none will ever give a lock back.

What to do: take locks in the same order everywhere, or one lock for both; use `with` so that an
exception gives it back; see all threads with `sonde stacks TARGET`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.advice.rules import _standing
from sonde.advice.verdict import Limit, Limits, Rows, Verdict
from sonde.analysis.standstill import CIRCLE, DEADLOCK, LOCKS, Standstill, find_standstill
from sonde.words import show_duration

FIRST = DANGER = True
NEEDS = ("python.stack_sample.wait", "sonde.session.state")
LIMITS = {
    "least_s": Limit(5, "that every thread of the process has stood at one line"),
    "rest_s": Limit(10, "the same, if some threads rest or sleep and may hold the lock"),
    "cpu_pct": Limit(5, "of a processor from which something moves, if not in Python"),
}
SQL = _standing.SQL
_ITSELF = (
    "a Lock can be taken once: where a function that holds it calls another one that takes it, use "
    "threading.RLock, or split off a function that expects the lock to be held"
)
_FORKED = (
    "a thread of its parent held the lock when the process was forked, and that thread is not "
    "here: start children with `spawn` or `forkserver`, or fork before threads begin"
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    for threads in _standing.group_processes(rows):
        yield _judge_process(threads, limits)


def _judge_process(rows: list[Any], limits: Limits) -> Verdict:
    first = rows[0]
    who = f"pid {first.pid}" if first.rank is None else f"rank {first.rank}"
    threads = [_standing.read_thread(row) for row in rows]
    found = find_standstill(
        threads, first.pid, limits.least_s, has_native=_standing.has_native_threads(rows)
    )
    is_busy = (first.cpu_pct or 0) >= limits.cpu_pct
    is_circle = found is not None and found.kind == CIRCLE
    may_rest = is_busy or first.has_ended  # it moved, or came to its end
    if found is None or (may_rest and not is_circle) or not _is_about_locks(found, limits):
        return Verdict(first.piece, False, who=who)
    locked = [one for one in found.threads if one.takes_lock()] or found.threads
    evidence: dict[str, float | str | None] = {
        "stands_since_ns": 1e9 * found.stood_s, "threads": len(threads),
        "waiting_for_locks": len(locked),
        "what": found.describe_threads(8),
    }  # fmt: skip
    is_sure = found.kind in (CIRCLE, DEADLOCK)
    return Verdict(
        first.piece, True, evidence, severity="critical" if is_sure else "warning",
        readings=min(int(row.samples) for row in rows), who=who, line=locked[0].place,
        title=_name(found, len(threads)),
        todo=_advise(found, len(threads)),
    )  # fmt: skip


def _is_about_locks(found: Standstill, limits: Limits) -> bool:
    return found.kind in (CIRCLE, DEADLOCK) or (
        found.kind == LOCKS and found.stood_s >= limits.rest_s
    )


def _advise(found: Standstill, threads: int) -> str:
    if found.kind == CIRCLE and found.concerned == 1:
        return _ITSELF
    return _FORKED if found.kind == DEADLOCK and threads == 1 else ""


def _name(found: Standstill, threads: int) -> str:
    since = show_duration(1e9 * found.stood_s)
    if found.kind == CIRCLE and found.concerned == 1:
        return f"A thread has waited for {since} for a lock that it holds itself"
    if found.kind == CIRCLE:
        return f"{found.concerned} threads have waited for each other for {since}"
    if found.kind == LOCKS:
        return f"Nothing has moved for {since}: threads wait for locks, and the others rest"
    who = "the only thread waits for a lock that nobody gives" if threads == 1 else (
        "all threads wait for locks that nobody gives")  # fmt: skip
    return f"Nothing has moved for {since}: {who} back"
