"""Each recorded process and its descendants: CPU, memory, I/O."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from sonde import _core
from sonde.collector.sensors._descendants import Node, Tree
from sonde.collector.sensors._files import Reader, Row
from sonde.collector.sensors._slow_reads import Details
from sonde.tables.system import Process

ABOUT_PROCESSES = True  # its rows are about the recorded process or what it sees
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SKIP = 5  # readings until a sleeping process is read again
_CORES = os.cpu_count() or 1
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


class Raw(NamedTuple):
    """One reading of a process; see process.c."""

    t_ns: int
    cpu_ns: int
    name: str
    state: str
    parent: int
    start: int
    small_faults: int
    reaped: int  # minor faults of its children that ended and were waited for
    faults: int
    user_ticks: int
    system_ticks: int
    threads: int
    vms_bytes: int
    rss_pages: int
    io: tuple[int, int, int, int] | None  # None for another user's process


class Seen:
    """A process at the previous reading."""

    __slots__ = ("cpu_ns", "debts", "node", "raw", "skipped", "system_ns", "t_ns", "waits_in")

    def __init__(self, node: Node, raw: Raw, t_ns: int, cpu_ns: int, system_ns: int) -> None:
        self.node, self.raw, self.t_ns = node, raw, t_ns
        self.cpu_ns, self.system_ns = cpu_ns, system_ns  # reported so far: see _split()
        self.skipped = 0
        # As long as it does not run; empty if the kernel does not tell, None if it was not asked.
        self.waits_in: str | None = None
        # For each child that has ended: number of that reading, its minor faults, its I/O.
        self.debts: list[tuple[int, int, tuple[int, ...]]] = []


class Sensor:
    """Reads /proc/PID/stat and io, and the process's own CPU clock."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._tree, self._details = reader, reader.share(Tree), Details(reader)
        self._seen: dict[int, Seen] = {}
        self._raw: dict[int, Raw | None] = {}  # of this reading, as are the next two
        self._rows: dict[int, tuple[tuple[object, ...], tuple[object, ...]] | None] = {}
        self._number = -1
        self._last_ns = 0  # when the previous reading began
        self._began_ns = 0

    def read_machine(self) -> Iterator[Row]:
        """Yield nothing: see the other sensors."""
        return iter(())

    def read_process(self, pid: int) -> Iterator[Row]:
        """Yield rows about a process and its descendants, or about all processes if `pid` is 0;
        none once it has ended."""
        if self._number != self._reader.number:
            self._begin()
        below = self._tree.list_below(pid)
        # All are read, parents first, before any is measured: then we know which children have
        # ended before we count the I/O of their parent, which includes only those.
        for node, _depth in below:
            if node.pid not in self._raw:
                self._raw[node.pid] = self._read(node)
        gone = {pid: seen for pid, seen in self._seen.items() if not seen.node.alive}
        for seen in sorted(gone.values(), key=lambda one: -_count_above(one, gone)):
            self._forget(seen)
        for node, _depth in below:
            if node.pid not in self._rows:
                raw = self._raw[node.pid]
                self._rows[node.pid] = None if raw is None else self._measure(node, raw)
        there = [(node, depth) for node, depth in below if self._rows[node.pid] is not None]
        self._details.read([node for node, _ in there])
        for node, depth in there:
            front, back = self._rows[node.pid] or ((), ())
            yield Process, (*front, depth, *back[:2], *self._details.take(node.pid), *back[2:])

    def _begin(self) -> None:
        if self._number >= 0:
            for pid in self._seen.keys() - self._raw.keys():
                del self._seen[pid]  # no session needs it any more
        self._number = self._reader.number
        self._raw.clear()
        self._rows.clear()
        self._last_ns, self._began_ns = self._began_ns, self._reader.clock()
        self._details.begin()

    def _read(self, node: Node) -> Raw | None:
        reader, seen = self._reader, self._seen.get(node.pid)
        if seen is not None and seen.node is not node:
            seen = None
        try:
            folder = f"{reader.proc}/{node.pid}"
            stat, io = reader.open(node, f"{folder}/stat", f"{folder}/io")
            found = _core.process_read(node.pid, stat, io, _find_known(seen))
            if isinstance(found, int):
                assert seen is not None
                return seen.raw._replace(t_ns=found)
            raw = Raw._make(found)
            if raw.start == node.start:
                return raw if reader.is_real else raw._replace(t_ns=reader.clock(), cpu_ns=-1)
        except OSError:
            pass
        finally:
            reader.shut()
        reader.forget(node)
        self._tree.drop(node)
        return None

    def _forget(self, seen: Seen) -> None:
        """Forget a process that has ended.

        Its I/O is already counted, and is now also part of the I/O of its parent; so is that of its
        own children, which were forgotten before it."""
        raw = seen.raw
        del self._seen[seen.node.pid]
        parent = self._seen.get(raw.parent)
        if parent is not None and raw.io is not None:
            parent.debts.append((self._reader.number, raw.small_faults + raw.reaped, raw.io))
            parent.debts += seen.debts

    def _measure(
        self, node: Node, raw: Raw
    ) -> tuple[tuple[object, ...], tuple[object, ...]] | None:
        """Return the columns of its row before and after `depth`; None at the first reading."""
        cpu_ns = raw.cpu_ns
        if cpu_ns < 0:
            cpu_ns = (raw.user_ticks + raw.system_ticks) * _TICK_NS
        seen = self._seen.get(node.pid)
        if seen is None or seen.node is not node:
            born_ns = self._find_birth(raw)
            since_ns = self._last_ns - _TICK_NS
            if since_ns < 0 or not since_ns <= born_ns < raw.t_ns:
                # It was already running at the previous reading, but was not read then.
                system_ns = raw.system_ticks * _TICK_NS
                self._seen[node.pid] = Seen(node, raw, raw.t_ns, cpu_ns, system_ns)
                return None
            nothing = raw._replace(cpu_ns=0, small_faults=0, reaped=0, faults=0, io=(0, 0, 0, 0))
            seen = self._seen[node.pid] = Seen(node, nothing, born_ns, 0, 0)
        passed = raw.t_ns - seen.t_ns
        if passed <= 0:
            return None
        user, system = _split(seen, cpu_ns, raw.system_ticks * _TICK_NS, passed)
        io, faults = self._count_io(seen, raw), max(0, raw.faults - seen.raw.faults)
        seen.waits_in = self._find_wait(seen, raw)
        seen.raw, seen.t_ns, node.threads = raw, raw.t_ns, raw.threads
        return (
            (raw.t_ns, passed, 100 * user / passed, 100 * system / passed, raw.rss_pages * _PAGE,
             raw.vms_bytes, raw.threads, node.pid, raw.parent),
            (raw.name, raw.state, faults, *io, seen.waits_in or None),
        )  # fmt: skip

    def _find_wait(self, seen: Seen, raw: Raw) -> str | None:
        """Return in which function of the kernel a process sleeps that has not run since the
        previous reading: it is asked once, for it sleeps there until it runs."""
        if raw.state not in "SD" or raw.cpu_ns < 0 or raw.cpu_ns != seen.raw.cpu_ns:
            return None
        if seen.waits_in is not None:
            return seen.waits_in
        try:
            with open(f"{self._reader.proc}/{seen.node.pid}/wchan", encoding="ascii") as file:
                found = file.read()
        except (OSError, UnicodeDecodeError):
            return ""
        return found if found.isidentifier() else ""

    def _find_birth(self, raw: Raw) -> int:
        """Return when a process started, by our clock; at most a tick too early."""
        asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._reader.clock()
        return raw.start * _TICK_NS - asleep_ns

    def _count_io(self, seen: Seen, raw: Raw) -> tuple[int | None, ...]:
        """Return bytes since the previous reading, less those counted for children that ended."""
        before = seen.raw.io
        if raw.io is None or before is None:
            return None, None, None, None
        if raw.io == before:
            return 0, 0, 0, 0
        grown = [new - old for new, old in zip(raw.io, before, strict=True)]
        if seen.debts:
            reaped, left = raw.reaped - seen.raw.reaped, []
            for number, faults, io in seen.debts:
                if reaped >= faults > 0:
                    reaped -= faults
                    grown = [mine - its for mine, its in zip(grown, io, strict=True)]
                elif number == self._reader.number:
                    left.append((number, faults, io))  # it may have ended after the parent was read
            seen.debts = left
        return tuple([max(0, amount) for amount in grown])


def _count_above(seen: Seen, gone: dict[int, Seen]) -> int:
    """Return how many of its ancestors have ended."""
    above = 0
    while above < len(gone) and seen.raw.parent in gone:
        seen, above = gone[seen.raw.parent], above + 1
    return above


def _find_known(seen: Seen | None) -> int:
    """Return the CPU time at which a process need not be read again; -1 if it must be.

    A process that has not run has done nothing. But others can change its memory, so it is read
    now and then."""
    if seen is None or seen.raw.state == "R":
        return -1
    seen.skipped = (seen.skipped + 1) % _SKIP
    return seen.raw.cpu_ns if seen.skipped else -1


def _split(seen: Seen, cpu_ns: int, system_ns: int, passed: int) -> tuple[int, int]:
    """Return CPU time in the program and in the kernel since the previous reading.

    The time of the CPU clock is split so that the kernel's part is never more than a tick behind.
    The clock lags while a thread runs, so it may jump by more than all processors could provide:
    the excess is left for the next reading."""
    used = min(passed * _CORES, max(0, cpu_ns - seen.cpu_ns))
    seen.cpu_ns += used
    system = min(used, max(0, system_ns - seen.system_ns))
    seen.system_ns += system
    return used - system, system
