"""The program stands still: nothing in it has moved for a while.

Why it hurts: a job that waits for ever costs as much as one that works, and nobody notices.

What to do: see where every thread and rank stands (`sonde stacks TARGET --native`), and look at
what it waits for; give calls that may wait for ever a time limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sonde.advice.rules import _standing
from sonde.advice.verdict import Limit, Limits, Rows, Verdict
from sonde.analysis.standstill import (
    ALONE,
    GIL,
    OUTSIDE,
    StandingThread,
    Standstill,
    find_standstill,
)
from sonde.analysis.wait_words import describe_kernel_wait
from sonde.words import show_duration

FIRST = DANGER = True
UNLESS = ("desync", "deadlock")
COMPARES = True
NEEDS = ("python.stack_sample.wait", "sonde.session.state")
LIMITS = {
    "least_s": Limit(5, "that the threads have stood at one line"),
    "cpu_pct": Limit(5, "of a processor from which something moves, if not in Python"),
    "step_s": Limit(20, "without a step that is worth a warning, if the main thread stands"),
    "times": Limit(20, "times the usual length of a step, if that is longer"),
    "critical_s": Limit(300, "without a step that is critical"),
}
_GIL_PCT = 3.0  # of a processor that a thread uses that waits for the GIL: it asks again and again
SQL = _standing.SQL
_GIL_TODO = (
    "the call must give the GIL back while it waits (ctypes.CDLL instead of PyDLL, "
    "Py_BEGIN_ALLOW_THREADS in C, `nogil` in Cython), or have a time limit; "
    "`sonde stacks TARGET --native` shows the native functions"
)
_LOOP_TODO = (
    "`await` the coroutine (or asyncio.wrap_future of the future) in place of asking for its "
    "result: while this thread waits, its loop can run nothing. What is not asynchronous and needs "
    "an answer of the loop must run in another thread (asyncio.to_thread)"
)
_PIPE_TODO = (
    "read what the child writes while it runs: Popen.communicate() or subprocess.run(…, "
    "capture_output=True) in place of wait() with stdout=PIPE; or have it write to a file"
)
_CHILD_TODO = (
    "see why the child waits: where it is to hand over its results by a multiprocessing.Queue or a "
    "pipe, take them all before join(); give join() a time limit"
)


def judge(rows: Rows, limits: Limits) -> Iterator[Verdict]:
    alive = [row for row in rows if not row.has_ended]
    found = [_judge_process(process, limits) for process in _standing.group_processes(alive)]
    everyone_stands = all(stand is not None for _row, stand in found)
    standing = {(row.host, row.pid): stand for row, stand in found if stand is not None}
    waits = {(row.host, row.pid): _find_child(row, stand, standing) for row, stand in found}
    verdicts = {}
    for row, stand in found:
        who = f"pid {row.pid}" if row.rank is None else f"rank {row.rank}"
        if stand is None or (stand.kind == OUTSIDE and not everyone_stands):
            verdicts[row.host, row.pid] = Verdict(row.piece, False, who=who)
        else:
            wait = waits[row.host, row.pid]
            verdicts[row.host, row.pid] = _describe(row, stand, limits, who, wait)
    for (host, pid), verdict in verdicts.items():
        # A child that is waited for is part of what its parent stands for.
        over = [parent for parent, wait in waits.items()
                if wait is not None and parent[0] == host and pid in wait.pids
                and verdicts[parent].fired]  # fmt: skip
        told = verdicts[over[0]] if over else verdict
        yield verdict._replace(title=told.title, line=told.line, todo=told.todo)


class ChildWait(NamedTuple):
    """What the children of a process, for whose end it waits, wait for themselves."""

    pids: Sequence[int]
    words: str
    is_full: bool  # for room in a pipe, which nobody makes while all stand
    todo: str


def _find_child(
    row: Any, stand: Standstill | None, standing: Mapping[tuple[str, int], Standstill]
) -> ChildWait | None:
    """Return what those wait for that a process waits for, from their own recordings if there are
    any, and else from the kernel; None if it waits for no process, or that is not known."""
    if stand is None or stand.threads[0].wait != "child":
        return None
    children = [one for one in row.below or () if one["parent"] == row.pid]
    recorded = [one for one in children if (row.host, one["process"]) in standing]
    if recorded:
        stands = [standing[row.host, one["process"]] for one in recorded]
        words = (
            f"{stands[0].threads[0].words} ({recorded[0]['name']}, pid {recorded[0]['process']})"
        )
        is_full = any(one.is_idle and one.wait == "pipe" and one.sends
                      for stand in stands for one in stand.threads)  # fmt: skip
        return ChildWait([one["process"] for one in recorded], words, is_full, _CHILD_TODO)
    full = [one for one in children if "pipe_write" in (one["waits_in"] or "")]
    # Of several it is not known which one is waited for: multiprocessing keeps one that only rests.
    alone = full if len(full) == 1 else children
    words = describe_kernel_wait(alone[0]["waits_in"] or "") if len(alone) == 1 else ""
    if not words:
        return None
    words = f"{words} ({alone[0]['name']}, pid {alone[0]['process']})"
    todo = _PIPE_TODO if full else _CHILD_TODO
    return ChildWait([alone[0]["process"]], words, bool(full), todo)


def _judge_process(rows: list[Any], limits: Limits) -> tuple[Any, Standstill | None]:
    """Return why a process stands still, if it does, and one of its rows."""
    first, threads = rows[0], [_standing.read_thread(row) for row in rows]
    found = find_standstill(
        threads, first.pid, limits.least_s, has_native=_standing.has_native_threads(rows)
    )
    waiting = sum(one.wait == "gil" for one in threads)
    is_busy = (first.cpu_pct or 0) >= limits.cpu_pct + _GIL_PCT * waiting
    return first, None if is_busy else found or _find_silence(first, threads, limits)


def _find_silence(row: Any, threads: list[StandingThread], limits: Limits) -> Standstill | None:
    """Return that a training loop has stopped, whatever it waits for."""
    main = next((one for one in threads if one.thread == row.pid), None)
    if row.silent_s is None or main is None or not main.is_idle or main.rests:
        return None
    if min(row.silent_s, main.stood_s) < max(limits.step_s, limits.times * row.usual_s):
        return None
    others = [one for one in threads if one is not main]
    return Standstill(OUTSIDE, main.stood_s, [main, *others])


def _describe(
    row: Any, stand: Standstill, limits: Limits, who: str, child: ChildWait | None
) -> Verdict:
    first = stand.threads[0]
    evidence: dict[str, float | str | None] = {
        "stands_since_ns": 1e9 * stand.stood_s, "threads": len(stand.threads),
        "what": stand.describe_threads(8),
    }  # fmt: skip
    if row.silent_s is not None:
        evidence |= {"without_step_ns": 1e9 * row.silent_s, "usual_step_ns": 1e9 * row.usual_s,
                     "last_step": row.step}  # fmt: skip
    since = show_duration(1e9 * stand.stood_s)
    title = f"Nothing has moved for {since}: the program waits for {first.words}"
    if stand.kind == GIL:
        title = f"Nothing can run for {since}: a native call waits, and holds the GIL meanwhile"
    elif stand.kind == ALONE:
        title += ", and no thread is left that could bring it"
        if _runs_loop(first):
            title += ": this one runs the event loop"
    elif child is not None:
        title += f", which waits for {child.words}"
    todo = _GIL_TODO if stand.kind == GIL else ""
    if stand.kind == ALONE and _runs_loop(first):
        todo = _LOOP_TODO
    if child is not None:
        todo = child.todo
    level = _grade(row, stand, limits)
    return Verdict(
        row.piece, True, evidence, readings=20, who=who, title=title, line=first.place, todo=todo,
        # Whoever waits for it stands as well: nobody will read what it writes.
        severity="warning" if child is not None and child.is_full and level == "info" else level,
    )  # fmt: skip


def _runs_loop(one: StandingThread) -> bool:
    """Return whether a thread waits inside of a callback of the event loop that it runs itself."""
    return any(
        file.endswith("/asyncio/events.py") and func.endswith("_run")
        for func, file, _line in one.frames
    )


def _grade(row: Any, stand: Standstill, limits: Limits) -> str:
    """Return how severe it is. What comes from outside may still come, and a worker may wait for
    work: only a loop that made steps is known not to rest."""
    if stand.kind == GIL:
        return "critical"
    silent_s = 0.0 if row.silent_s is None else min(row.silent_s, stand.stood_s)
    if silent_s >= max(limits.critical_s, limits.times * (row.usual_s or 0)):
        return "critical"
    is_late = silent_s >= max(limits.step_s, limits.times * (row.usual_s or 0)) > 0
    return "warning" if stand.kind == ALONE or is_late else "info"
