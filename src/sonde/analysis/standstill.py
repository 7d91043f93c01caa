"""Whether a process stands still, and why: told by what each of its threads has waited for."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sonde import _core
from sonde.analysis.code_names import MINE, PYTHON, find_owner, name_call
from sonde.analysis.wait_words import describe_lock, describe_wait
from sonde.errors import Damaged
from sonde.session import Session, stack_table
from sonde.session.held_lock import THREAD, HeldLock
from sonde.session.lock_waits import read_lock_waits
from sonde.words import show_duration

# Why a process, or a part of it, stands still. Of the first four nothing but a signal can free it.
GIL, CIRCLE, DEADLOCK, ALONE = "gil", "circle", "deadlock", "alone"
LOCKS, OUTSIDE = "locks", "outside"
_TAKE = ("acquire", "__enter__")  # functions of Python's library that do nothing but take a lock
_COMES_FROM_THREADS = (
    "queue", "thread to end", "future", "barrier", "semaphore", "a lock", "result of a",
)  # fmt: skip
_COMES_FROM_OUTSIDE = ("network", "pipe", "shared_lock", "child", "disk", "fault")
_FEW_ROWS = 1_000  # that are looked at first
_MOST_ROWS = 20_000  # that are read of a live process
_STALE_NS = 3 * 10**9  # after which a thread that is sampled has a row
_LOOK_S = 0.2
_REST = ("a connection", "an event", "a condition")  # what a server, or a daemon, waits for


class StandingThread(NamedTuple):
    """A thread, and what it did in the last seconds."""

    thread: int
    name: str | None
    stood_s: float  # for how long it has been seen at no other stack
    is_idle: bool  # all the time
    has_gil: bool  # all the time
    wait: str | None  # what it waited for most, as the kernel says
    frames: Sequence[tuple[str, str, int]]  # function, file, line; the innermost first
    lock: HeldLock | None = None  # the lock that it waits for
    lock_age_s: float = 0.0  # how long ago that was seen

    @property
    def words(self) -> str:
        """Return what it waits for."""
        return describe_wait([frame[:2] for frame in self.frames], self.wait) or "something"

    @property
    def place(self) -> str:
        """Return the innermost line of the user's own code; of other code if there is none."""
        own = [frame for frame in self.frames if find_owner(frame[1]) == MINE]
        for func, file, line in [*own, *self.frames][:1]:
            return f"{file}:{line} in {func}"
        return ""

    @property
    def call(self) -> str:
        """Return the function of a library that its own code has called; empty if there is none."""
        called = ""
        for func, file, _line in self.frames:
            if find_owner(file) == MINE:
                break
            called = name_call(func, file)
        return called

    @property
    def rests(self) -> bool:
        """Return whether it waits for somebody who may never come, as a server or a notebook does,
        and not for the end of something."""
        return self.wait == "poll" or self.words == _REST[0]

    @property
    def sends(self) -> bool:
        """Return whether it hands something to another process, through multiprocessing."""
        return any(
            file.endswith("/multiprocessing/connection.py") and func.rpartition(".")[2] == "_send"
            for func, file, _line in self.frames
        )

    def takes_lock(self) -> bool:
        """Return whether the program takes a lock here, instead of waiting for a queue or a result,
        which are made of locks as well."""
        if self.wait != "lock" or not self.frames:
            return False
        func, file, _line = self.frames[0]
        owner = find_owner(file)
        return owner == MINE or (owner == PYTHON and func.rpartition(".")[2] in _TAKE)

    def describe(self, names: Mapping[int, str | None]) -> str:
        """Return a line about it."""
        words = self.words
        if self.lock is not None and self.wait == "lock":
            taken = "{1}:{2}".format(*self.lock.taken) if self.lock.taken else ""
            words = describe_lock(words, self.lock, names, taken)
            return f"{self.name or self.thread} ({self.place}) waits for {words}"
        return f"{self.name or self.thread} waits for {words} at {self.place}"


class Standstill(NamedTuple):
    """A process in which nothing moves."""

    kind: str
    stood_s: float
    threads: Sequence[StandingThread]  # the one to look at first is the first
    concerned: int = 1  # so many of the first ones are what it is about

    def describe_threads(self, most: int) -> str:
        """Return a line about each of the first threads."""
        names = {one.thread: one.name for one in self.threads}
        return "; ".join(one.describe(names) for one in self.threads[:most])

    @property
    def sentence(self) -> str:
        """Return why nothing moves."""
        first = self.threads[0]
        if self.kind == GIL:
            return f"a native call that {first.place} made waits, and holds the GIL meanwhile"
        if self.kind == CIRCLE:
            return f"{self._name_circle()} ({self.describe_threads(self.concerned)})"
        if self.kind in (DEADLOCK, LOCKS):
            return f"its threads wait for locks ({first.place})"
        alone = ", and no thread is left that could bring it" if self.kind == ALONE else ""
        return f"it waits for {first.words}{alone} ({first.place})"

    def _name_circle(self) -> str:
        if self.concerned == 1:
            return "a thread has waited for a lock that it holds itself"
        return f"{self.concerned} threads have waited for each other"

    @property
    def summary(self) -> str:
        """Return since when nothing moves, and why."""
        since = show_duration(self.stood_s * 1e9)
        if self.kind == CIRCLE:
            return f"for {since}, {self.sentence}"
        return f"nothing has moved for {since}: {self.sentence}"


def find_standstill(
    threads: Sequence[StandingThread], pid: int, least_s: float, *, has_native: bool
) -> Standstill | None:
    """Return why nothing in a process has moved for `least_s` seconds; None if something did, or if
    it rests. `has_native`: it also has threads that are not Python's, which may wake others."""
    standing = [one for one in threads if one.stood_s >= least_s]
    holders = [one for one in standing if one.has_gil and one.is_idle]
    if holders:
        return _make(GIL, [*holders, *(one for one in threads if one not in holders)], 1)
    circle = _find_circle(standing)
    if circle:
        return _make(CIRCLE, [*circle, *(one for one in threads if one not in circle)], len(circle))
    if not all(one.is_idle for one in threads):
        return None
    locked = [one for one in standing if one.takes_lock()]
    others = [one for one in threads if one not in locked]
    are_locks = len(standing) == len(threads) and all(one.wait == "lock" for one in threads)
    if locked and are_locks and (len(locked) > 1 or not has_native):
        return _make(DEADLOCK, [*locked, *others], len(threads))
    if len(locked) > 1:
        return _make(LOCKS, [*locked, *others], len(locked))
    return _find_wait(standing, threads, pid, are_locks and not has_native)


def _find_circle(standing: Sequence[StandingThread]) -> list[StandingThread]:
    """Return threads of which each waits for a lock that the next one holds, and the last for one
    of the first; of several circles, one with most threads. A holder that has not moved since it
    was seen to hold a lock holds it still."""
    found: list[StandingThread] = []
    by_id = {one.thread: one for one in standing if one.is_idle and one.lock is not None}
    for first in by_id.values():
        path = [first]
        while (last := path[-1]).lock is not None and last.lock.holder in by_id:
            after = by_id[last.lock.holder]
            if after.stood_s < last.lock_age_s:
                break
            if after in path:
                found = max(found, path[path.index(after) :], key=len)
                break
            path.append(after)
    return found


def _find_wait(
    standing: Sequence[StandingThread], threads: Sequence[StandingThread], pid: int, is_alone: bool
) -> Standstill | None:
    """Return what the main thread waits for, if that is not its rest."""
    main = next((one for one in standing if one.thread == pid), None)
    if main is None or main.words in _REST or _is_worker(main):
        return None
    order = [main, *(one for one in threads if one is not main)]
    if is_alone and any(word in main.words for word in _COMES_FROM_THREADS):
        return _make(ALONE, order, len(order))
    last = _follow(main, standing)
    is_outside = last.wait in _COMES_FROM_OUTSIDE and last.words not in _REST
    return _make(OUTSIDE, order, 1) if is_outside else None


def _follow(first: StandingThread, standing: Sequence[StandingThread]) -> StandingThread:
    """Return the thread whose end a thread waits for in the end, if that is known."""
    by_id = {one.thread: one for one in standing if one.is_idle}
    path = [first]
    while (lock := path[-1].lock) is not None and lock.kind == THREAD:
        after = by_id.get(lock.holder or 0)
        if after is None or after in path:
            break
        path.append(after)
    return path[-1]


def _is_worker(main: StandingThread) -> bool:
    """Return whether it is a worker process without work: none of the user's own code was called
    since the process began. (Frames outside of that are those that its parent was forked in.)"""
    for func, file, _line in main.frames:
        if find_owner(file) == MINE:
            return False
        if file.endswith("/multiprocessing/process.py") and func.endswith("run"):
            return True
    return False


def _make(kind: str, threads: Sequence[StandingThread], count: int) -> Standstill:
    return Standstill(kind, min(one.stood_s for one in threads[:count]), threads, count)


def add_lock(one: StandingThread, lock: HeldLock | None, now_ns: int) -> StandingThread:
    """Return a thread with the lock that it waits for, unless it moved since that was seen."""
    age_s = 0.0 if lock is None else (now_ns - lock.t_ns) / 1e9
    if lock is None or one.wait != "lock" or age_s > one.stood_s:
        return one
    return one._replace(lock=lock, lock_age_s=age_s)


# ---- a live process ------------------------------------------------------------------------------


def look_at(session: Session, least_s: float = 5.0) -> Standstill | None:
    """Return why nothing moves in a live process of this machine, if only a signal can free it; the
    newest samples tell, without Arrow."""
    try:
        threads = _read_threads(session, least_s, _FEW_ROWS)
        if threads is not None and _judge_threads(session, threads, least_s) is None:
            return None
        # Most go on, as few rows tell; since when one stands still, only more of them.
        threads = _read_threads(session, least_s, _MOST_ROWS) or []
        found = _judge_threads(session, threads, least_s)
        if found is None or found.kind == CIRCLE:  # whatever the other threads do
            return found
        return None if _is_working(session.pid, len(threads)) else found
    except (OSError, Damaged):  # it has just ended, or its stacks are not recorded
        return None


def _judge_threads(
    session: Session, threads: Sequence[StandingThread], least_s: float
) -> Standstill | None:
    """Return why nothing moves, if only a signal can free it."""
    if not any(one.stood_s >= least_s for one in threads):
        return None
    tasks = len(os.listdir(f"/proc/{session.pid}/task"))
    found = find_standstill(threads, session.pid, least_s, has_native=tasks > len(threads) + 1)
    return found if found and found.kind in (GIL, CIRCLE, DEADLOCK, ALONE) else None


def _read_threads(session: Session, least_s: float, most: int) -> list[StandingThread] | None:
    """Return what every thread did in the last seconds; nothing if they were not sampled, None if
    they worked too much for that to be in so many of the newest rows."""
    rows = list(stack_table.read_newest_rows(session, stack_table.SAMPLES, most))
    end_ns = max((row["t_ns"] for row in rows), default=0)
    begin_ns = end_ns - round(least_s * 1e9)
    if not rows or _core.clock_ns() - end_ns > _STALE_NS:
        return []
    if len(rows) == most and rows[0]["t_ns"] > begin_ns:
        return None
    by_thread: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_thread.setdefault(row["thread"], []).append(row)
    names, ended = stack_table.read_threads(session)
    nodes = stack_table.read_nodes(session)
    places = {number: place for place, number in enumerate(nodes.hashes)}
    locks = read_lock_waits(session)
    found = []
    for thread, mine in by_thread.items():
        if thread in ended or mine[-1]["t_ns"] < end_ns - _STALE_NS:
            continue
        stack = [nodes.frame(at) for at in nodes.walk(places.get(mine[-1]["stack"], -1))]
        frames = [(one.func, one.file, one.line) for one in stack]
        one = _sum_up(thread, names.get(thread), mine, frames, begin_ns)
        found.append(add_lock(one, locks.get(thread), end_ns))
    return found


def _sum_up(
    thread: int, name: str | None, rows: Sequence[dict[str, Any]],
    frames: Sequence[tuple[str, str, int]], begin_ns: int,
) -> StandingThread:  # fmt: skip
    last = rows[-1]
    moved = [row["t_ns"] for row in rows if row["stack"] != last["stack"]]
    since_ns = moved[-1] if moved else rows[0]["t_ns"] - rows[0]["wall_ns"]
    recent = [row for row in rows if row["t_ns"] > begin_ns]
    return StandingThread(
        thread, name, (last["t_ns"] - since_ns) / 1e9, all(row["idle"] for row in recent),
        all(row["gil"] for row in recent), last["wait"], frames,
    )  # fmt: skip


def _is_working(pid: int, threads: int) -> bool:
    """Return whether a process uses a processor, more than threads do that ask for the GIL."""
    before = _read_ticks(pid)
    time.sleep(_LOOK_S)
    used_s = (_read_ticks(pid) - before) / os.sysconf("SC_CLK_TCK")
    return used_s > _LOOK_S * (0.05 + 0.03 * threads)


def _read_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        words = file.read().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])
