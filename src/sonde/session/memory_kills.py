"""Counters of processes that the kernel has killed for memory: kept in a session, compared later.

Our collector gives way first when memory runs out, so that the job may live on. If the job is
killed all the same, nobody is left to see it. So while it runs, the collector keeps in the session
what the counters of the job's cgroup say. Whoever finds the job dead compares them with what they
say now: what the kernel has killed in between were our own processes, the job, or others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

from sonde.errors import Damaged
from sonde.launch import collector_starts, has_collector
from sonde.session.files import MEMORY_KILLS
from sonde.session.folder import Session, list_sessions
from sonde.session.records import Exit, MemoryKills

Counts = tuple[int, int, int]  # processes killed; cgroups killed as a whole; limits reached
Read = Callable[[str], bytes]

_LATE_NS = 600 * 10**9  # a cgroup that lives on counts what happens to later processes, too


def read_counts(folder: str, read: Read) -> Counts | None:
    """Return the counts of a cgroup; None if the kernel does not count there."""
    # What is called local is of this very cgroup. Before Linux 5.2 there was only the sum of all
    # below it; version 1 has no such sums.
    for file in ("memory.events.local", "memory.events", "memory.oom_control"):
        kills = _read_numbers(f"{folder}/{file}", read).get(b"oom_kill")
        if kills is not None:
            break
    else:
        return None
    wholes = limits = 0
    for above in _list_up(folder):
        wholes += _read_numbers(f"{above}/memory.events.local", read).get(b"oom_group_kill", 0)
        reached = _read_numbers(f"{above}/memory.events", read).get(b"oom")
        limits += _read_number(f"{above}/memory.failcnt", read) if reached is None else reached
    return kills, wholes, limits


def _list_up(folder: str) -> Iterator[str]:
    """Yield a cgroup's folder and those above it: each may set a limit."""
    while any(os.path.exists(f"{folder}/{file}") for file in ("memory.events", "memory.failcnt")):
        yield folder
        folder = os.path.dirname(folder)


def _read_numbers(path: str, read: Read) -> dict[bytes, int]:
    try:
        lines = [line.split() for line in read(path).splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}


def _read_number(path: str, read: Read) -> int:
    try:
        return int(read(path))
    except (OSError, ValueError):
        return 0


def count_starts(root: str) -> int:
    """Return how many collectors were started since one proved itself."""
    try:
        return os.stat(collector_starts(root)).st_size
    except OSError:
        return 0


def find_kept_kill(session: Session, end_wall_ns: int, starts: int | None = None) -> Exit | None:
    """Return how a process ended that was killed while nobody looked, if the counters of its
    cgroup tell; None if it was not for memory, or nothing can be known.

    `starts`: the collectors that were started before the one that asks. Without it, a collector
    that runs is about to say."""
    root = os.path.dirname(session.folder)
    kept = _read_kept(session)
    if kept is None or kept.is_judged or (starts is None and has_collector(root)):
        return None
    now = _read_again(session, kept)
    if now is None:
        return None
    left = now[0] - kept.kills - kept.ours  # who were they, besides those of ours that lived then
    is_whole = now[1] > kept.wholes
    if left <= 0 and not is_whole:
        return None
    started = (count_starts(root) if starts is None else starts) - kept.starts if kept.ours else 0
    is_late = time.time_ns() - end_wall_ns > _LATE_NS
    is_likely = is_whole or left - max(0, started) >= _count_alike(session, kept)
    certainty = "likely" if is_likely and not is_late else "possible"
    return Exit(
        status=int(signal.SIGKILL) if certainty == "likely" else None,
        out_of_memory="cgroup" if now[2] > kept.limits else "machine",
        certainty=certainty,
    )


def _read_again(session: Session, kept: MemoryKills) -> Counts | None:
    """Return what the counters say now; None if the cgroup is gone, as that of a container."""
    try:
        is_same = session.is_here() and os.stat(kept.folder).st_ino == kept.number
    except OSError:
        return None
    return read_counts(kept.folder, _read_file) if is_same else None


def _read_kept(session: Session) -> MemoryKills | None:
    try:
        return MemoryKills.read(session.path(MEMORY_KILLS))
    except (FileNotFoundError, Damaged):
        return None


def _count_alike(session: Session, kept: MemoryKills) -> int:
    """Return of how many processes nobody knows what killed them, all in one cgroup since the same
    look at its counters."""
    found = 0
    for one in list_sessions(os.path.dirname(session.folder)):
        other = _read_kept(one)
        if other is None or (other.number, other.kills) != (kept.number, kept.kills):
            continue
        known = one.read_exit()
        is_sure = known is not None and known.status is not None and known.certainty == "sure"
        found += not is_sure and one.find_state() == "killed"
    return found


def note_judged(session: Session) -> None:
    """Note that the counters have been compared: what they say later is about others."""
    kept = _read_kept(session)
    if kept is not None and not kept.is_judged:
        kept.replace(is_judged=True).write(session.path(MEMORY_KILLS))


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
