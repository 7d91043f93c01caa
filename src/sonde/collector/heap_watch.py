"""Have the heap of a process sampled for a time while its memory keeps growing.

The decision is made here and not in the job, from what the sensors read of it once a second. By
the time a person asks, the job may be dead: then the line that keeps the memory is known."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from sonde import _core
from sonde.collector.growth import Grown, MemoryGrowth
from sonde.errors import Error
from sonde.session import Session, files, stack_table
from sonde.session.heap_look import SETTING, HeapLook, read_look
from sonde.session.steering import change_look
from sonde.tables.system import Process
from sonde.words import show_bytes, show_duration

LOOK_S = (60.0, 600.0)  # a look lasts as long as the growth was watched, within these
STILL = 4  # it ends early if nothing has grown for one part in so many of it
RESTS_S = (600.0, 3600.0, 3 * 3600.0, 9 * 3600.0)  # before another one; after the last one none
_COLUMNS = list(Process.__annotations__)
_T_NS, _RSS, _PROCESS, _DEPTH = (
    _COLUMNS.index(name) for name in ("t_ns", "rss_bytes", "process", "depth")
)
_WHEN = "heap.when_growing"
_IMPORT, _MOST = "<frozen importlib", 0.5  # of the time
_SAMPLES = 6000  # the newest, of all threads
# The process is ending, or its folder is locked.
_PASSING = (OSError, Error, ValueError, LookupError)
_PAGE = os.sysconf("SC_PAGE_SIZE")


def read_shared(pid: int) -> int:
    """Return how much of a process's memory is of files, or shared: it is not of its heap."""
    with open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[2]) * _PAGE


def find_import_end(session: Session, since_ns: int) -> int:
    """Return until when imports took most of the main thread's time since then, or 0 if they did
    not: what they allocate stays, and is no leak. Where stacks are not recorded nobody knows."""
    if not os.path.exists(session.path(files.NODES)):
        return 0
    all_ns = import_ns = end_ns = 0
    nodes = stack_table.read_nodes(session)
    places = {number: place for place, number in enumerate(nodes.hashes)}
    known: dict[int, bool] = {}
    for row in stack_table.read_newest_rows(session, "python.stack_sample", _SAMPLES):
        if row["t_ns"] < since_ns or row["thread"] != session.pid:
            continue
        stack = row["stack"]
        if stack not in known:
            above = nodes.walk(places.get(stack, -1))
            known[stack] = any(nodes.frame(at).file.startswith(_IMPORT) for at in above)
        all_ns += row["wall_ns"]
        import_ns += row["wall_ns"] * known[stack]
        if known[stack] and import_ns >= _MOST * all_ns:
            end_ns = row["t_ns"]
    return end_ns


class HeapWatch:
    """Watches the memory of one session, and switches its source `heap` on and off."""

    def __init__(
        self,
        session: Session,
        read: Callable[[int], int] = read_shared,
        find_start: Callable[[Session, int], int] = find_import_end,
    ) -> None:
        self._session, self._read, self._find_start = session, read, find_start
        self._growth = MemoryGrowth(session.meta.monotonic_ns / 1e9)
        # A collector before this one may have begun a look.
        self._look = read_look(session.folder)
        self._last = (0, 0)  # resident memory, and how much of it was shared
        self._epoch = 0
        self._is_wanted = False

    def refresh(self, values: Mapping[str, object]) -> None:
        """Take notice of the settings in force."""
        meta = self._session.meta
        # Whoever has set the source himself, either way, has decided. A job that was started before
        # sonde was updated does not know of looks.
        is_free = SETTING not in (meta.config_from or {}) and _WHEN in meta.config
        self._is_wanted = bool(values[_WHEN]) and is_free and not values[SETTING]
        # Readings may fail to come: they may be rare, or about another process.
        if self._look.is_on and _core.clock_ns() >= self._look.until_ns:
            with suppress(*_PASSING):
                self._end_if_due(_core.clock_ns())

    def note(self, row: tuple[Any, ...]) -> None:
        """Take a reading of a process; begin or end a look if it is time."""
        is_own = row[_DEPTH] == 0 and row[_PROCESS] == self._session.pid
        if not is_own or self._session.is_monitor or not (self._is_wanted or self._look.is_on):
            return
        t_ns, rss = row[_T_NS], row[_RSS]
        try:
            if rss != self._last[0]:
                self._last = rss, self._read(self._session.pid)
            grown = self._growth.add(t_ns / 1e9, rss - self._last[1])
            if self._look.is_on:
                self._end_if_due(t_ns)
            elif grown is not None and self._may_begin(t_ns):
                self._begin(t_ns, grown)
        except _PASSING:
            pass  # the next reading comes soon

    def _may_begin(self, t_ns: int) -> bool:
        look = self._look
        if look.is_declined or look.count > len(RESTS_S):
            return False
        rest_s = RESTS_S[max(0, look.count - 1)] if look.until_ns else 0.0
        is_rested = t_ns - look.until_ns >= rest_s * 1e9
        return is_rested and bool(self._session.read_control()["on"])

    def _begin(self, t_ns: int, grown: Grown) -> None:
        since_ns = t_ns - round(grown.seconds * 1e9)
        start_ns = self._find_start(self._session, since_ns)
        if start_ns > since_ns:
            self._growth.forget(start_ns / 1e9)
            return
        self._growth.forget()
        look_s = min(max(grown.seconds, LOOK_S[0]), LOOK_S[1])
        why = (
            f"because the memory grew by {show_bytes(grown.bytes)} in "
            f"{show_duration(grown.seconds * 1e9)}"
        )
        wanted = HeapLook(is_on=True, count=self._look.count + 1, begin_ns=t_ns,
                          until_ns=t_ns + round(look_s * 1e9), why=why)  # fmt: skip
        if self._change(wanted):
            files.log(
                self._session.folder,
                f"source.heap is on for {look_s:.0f} s at most, {why}; heap.when_growing=off "
                "keeps it off",
            )

    def _end_if_due(self, t_ns: int) -> None:
        look = self._look
        still_s = (look.until_ns - look.begin_ns) / 1e9 / STILL
        is_still = t_ns / 1e9 - max(self._growth.grown_s, look.begin_ns / 1e9) >= still_s
        if self._is_wanted and t_ns < look.until_ns and not is_still:
            return
        count = look.count
        if self._session.read_control()["obeyed"] < self._epoch:
            count -= 1  # the job has not come to a safe point meanwhile: nothing was looked at
        elif not os.path.exists(self._session.path(files.HEAP_NODES)):
            count = len(RESTS_S) + 1  # it cannot be sampled there; sonde.source says why
        self._growth.forget()
        self._change(look.replace(is_on=False, count=count, until_ns=t_ns))

    def _change(self, wanted: HeapLook) -> bool:
        self._epoch = change_look(self._session, wanted)
        # Not what was wished, but what is there: the user may have decided meanwhile.
        self._look = wanted if self._epoch else read_look(self._session.folder)
        return self._epoch > 0
