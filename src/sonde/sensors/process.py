"""Each recorded process and all that it started: CPU, memory, I/O."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from sonde.record import column, f64, i64, text
from sonde.sensors._look import Look, Row
from sonde.sensors._thread import Details
from sonde.sensors._tree import Node, Tree

_PAGE = os.sysconf("SC_PAGE_SIZE")
_CORES = os.cpu_count() or 1
_TOGETHER_NS = 50_000
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


class Process:
    """The watched process and every descendant, as the kernel sees them.

    Where there are many of them, values that take long to get are not in every row: they are NULL
    in between, and amounts cover the time since the last row that had them."""

    RING_BYTES = 2**20
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the row before, or since the process started", "ns")
    user_pct: f64 = column("in the program, of one processor. Both together are the process's CPU "
                           "clock, which lags by a tick of the scheduler at most: 1 to 10 ms",
                           "%")  # fmt: skip
    system_pct: f64 = column("in the kernel, of one processor; its part is known to 10 ms", "%")
    rss_bytes: i64 = column("resident memory", "bytes")
    vms_bytes: i64 = column("address space", "bytes")
    threads: i64 = column("threads")
    process: i64 = column("which process: its pid")
    parent: i64 = column("the process that it is below now")
    depth: i64 = column("0: the watched process itself, 1: its children; in the tree as first seen")
    name: text = column("as the kernel has it, cut at 15 characters")
    state: text = column("R runs, S sleeps, D waits for I/O, T stopped, Z ended")
    run_wait_pct: f64 | None = column("threads ready to run without a processor: 100 is one", "%")
    pss_bytes: i64 | None = column("its share of memory: pages of several processes in parts; "
                                   "every half minute at most", "bytes")  # fmt: skip
    swap_bytes: i64 | None = column("swapped out", "bytes")
    fds: i64 | None = column("open files")
    switches: i64 | None = column("times that its threads gave up a processor by themselves")
    forced_switches: i64 | None = column("times that a processor was taken from them")
    major_faults: i64 = column("pages that had to be read from disk in the interval")
    read_bytes: i64 | None = column("fetched from disks in the interval; of children that ended "
                                    "unseen, too", "bytes")  # fmt: skip
    written_bytes: i64 | None = column("caused to be written to disks in the interval", "bytes")
    asked_read_bytes: i64 | None = column("read calls in the interval, from anywhere", "bytes")
    asked_write_bytes: i64 | None = column("write calls in the interval, to anywhere", "bytes")


ROWS = (Process,)


class Raw:
    """What was read of a process in this look."""

    __slots__ = ("cpu_ns", "fields", "io", "name", "t_ns")

    def __init__(self, t_ns: int, cpu_ns: int | None, io: list[int] | None, stat: bytes) -> None:
        mark = stat.rindex(b")")  # the name may hold anything
        self.t_ns, self.io = t_ns, io
        self.name = stat[stat.index(b"(") + 1 : mark].decode("utf-8", "replace")
        self.fields = fields = stat[mark + 2 :].split()
        ticks = int(fields[11]) + int(fields[12])
        self.cpu_ns = ticks * _TICK_NS if cpu_ns is None else cpu_ns

    @property
    def start(self) -> int:
        """When it started, in ticks since the machine did."""
        return int(self.fields[19])

    @property
    def parent(self) -> int:
        """Whose child it is now."""
        return int(self.fields[1])

    @property
    def reaped(self) -> int:
        """Page faults of its children that have ended and were waited for."""
        return int(self.fields[8])


class Seen:
    """A process at the look before."""

    __slots__ = ("cpu_ns", "debts", "faults", "io", "node", "parent", "reaped", "small_faults",
                 "system_ns", "t_ns")  # fmt: skip

    def __init__(self, node: Node, t_ns: int) -> None:
        self.node, self.t_ns = node, t_ns
        self.cpu_ns = self.faults = self.small_faults = self.reaped = self.parent = 0
        self.system_ns = 0  # given out so far: see _split()
        self.io: list[int] | None = [0, 0, 0, 0]
        # Of children that are gone: in which look, their page faults, their I/O.
        self.debts: list[tuple[int, int, list[int]]] = []

    def update(self, raw: Raw) -> None:
        """Remember this look."""
        self.t_ns, self.cpu_ns, self.io, self.parent = raw.t_ns, raw.cpu_ns, raw.io, raw.parent
        self.reaped, self.faults = raw.reaped, int(raw.fields[9])
        self.small_faults = int(raw.fields[7])


class Sensor:
    """Reads /proc/PID/stat and io, and the process's own CPU clock."""

    def __init__(self, look: Look) -> None:
        self._look, self._tree, self._details = look, look.share(Tree), Details(look)
        self._seen: dict[int, Seen] = {}
        self._raw: dict[int, Raw | None] = {}  # of this look, as all that follows
        self._rows: dict[int, tuple[tuple[object, ...], tuple[object, ...]] | None] = {}
        self._number = -1
        self._looked_ns = 0  # when the look before began
        self._began_ns = 0

    def read_machine(self) -> Iterator[Row]:
        """Nothing: see the other sensors."""
        return iter(())

    def read_process(self, pid: int) -> Iterator[Row]:
        """Rows about a process and its descendants, 0 for all; none once it is gone."""
        if self._number != self._look.number:
            self._begin()
        below = self._tree.list_below(pid)
        # Parents first, then what they mean: a child that is gone is known before its parent's
        # I/O is looked at, and one that is still there was not in it when that was read.
        for node, _depth in below:
            if node.pid not in self._raw:
                self._raw[node.pid] = self._read(node)
        for seen in [seen for seen in self._seen.values() if not seen.node.alive]:
            self._bury(seen)
        for node, _depth in below:
            if node.pid not in self._rows:
                raw = self._raw[node.pid]
                self._rows[node.pid] = None if raw is None else self._measure(node, raw)
        self._details.read([node for node, _ in below if self._rows[node.pid] is not None])
        for node, depth in below:
            values = self._rows[node.pid]
            if values is not None:
                yield Process, (*values[0], depth, *values[1][:2], *self._details.take(node.pid),
                                *values[1][2:])  # fmt: skip

    def _begin(self) -> None:
        if self._number >= 0:
            for pid in self._seen.keys() - self._raw.keys():
                del self._seen[pid]  # no session wants it any more
        self._number = self._look.number
        self._raw.clear()
        self._rows.clear()
        self._looked_ns, self._began_ns = self._began_ns, self._look.clock()
        self._details.begin()

    def _read(self, node: Node) -> Raw | None:
        """The order counts: `stat` last, since it proves that all was of the same process; and I/O
        before it, so that what it says of ended children is never behind their I/O."""
        folder = f"{self._look.proc}/{node.pid}"
        now, cpu_ns = self._read_clock(node.pid)
        try:
            words = self._look.read(f"{folder}/io")[1].split()
            io = [int(words[at]) for at in (9, 11, 1, 3)]
        except (OSError, ValueError, IndexError):
            io = None  # another user's process
        try:
            raw = Raw(now, cpu_ns, io, self._look.read(f"{folder}/stat")[1])
            if raw.start == node.start:
                return raw
        except (OSError, ValueError, IndexError):
            pass
        self._tree.drop(node)
        return None

    def _read_clock(self, pid: int) -> tuple[int, int | None]:
        """Now, and its CPU time in nanoseconds, ended threads included; `stat` has it in ticks of
        10 ms."""
        now, used = self._look.clock(), None
        if self._look.proc != "/proc":
            return now, None
        for _ in range(3):
            try:
                used = time.clock_gettime_ns((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it
            except OSError:
                break
            before, now = now, self._look.clock()
            # Whoever is interrupted between two clocks has them disagree.
            if now - before < _TOGETHER_NS:
                break
        return now, used

    def _bury(self, seen: Seen) -> None:
        """It is gone. Its I/O, counted here, is now part of that of the process that waited."""
        del self._seen[seen.node.pid]
        parent = self._seen.get(seen.parent)
        if parent is not None and seen.io is not None:
            faults = seen.small_faults + seen.reaped
            parent.debts.append((self._look.number, faults, seen.io))

    def _measure(
        self, node: Node, raw: Raw
    ) -> tuple[tuple[object, ...], tuple[object, ...]] | None:
        """The values of its row before and after `depth`; None at the first look."""
        seen = self._seen.get(node.pid)
        if seen is None or seen.node is not node:
            born_ns = self._find_birth(raw)
            seen = self._seen[node.pid] = Seen(node, born_ns)
            since_ns = self._looked_ns - _TICK_NS
            if since_ns < 0 or not since_ns <= born_ns < raw.t_ns:
                seen.update(raw)  # it had a life before we looked
                seen.system_ns = int(raw.fields[12]) * _TICK_NS
                return None
        passed = raw.t_ns - seen.t_ns
        if passed <= 0:
            return None
        shares = [100 * ns / passed for ns in _split(seen, raw)]
        io = self._count_io(seen, raw)
        faults = max(0, int(raw.fields[9]) - seen.faults)
        seen.update(raw)
        threads, vms, rss = (int(raw.fields[at]) for at in (17, 20, 21))
        state = raw.fields[0].decode("ascii", "replace")
        return (
            (raw.t_ns, passed, *shares, rss * _PAGE, vms, threads, node.pid, raw.parent),
            (raw.name, state, faults, *io),
        )

    def _find_birth(self, raw: Raw) -> int:
        """When it started, by our clock; at most a tick too early."""
        asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._look.clock()
        return raw.start * _TICK_NS - asleep_ns

    def _count_io(self, seen: Seen, raw: Raw) -> list[int] | list[None]:
        """Bytes since the look before, less what was counted for children that have ended."""
        if raw.io is None or seen.io is None:
            return [None] * 4
        grown = [new - old for new, old in zip(raw.io, seen.io, strict=True)]
        reaped, left = raw.reaped - seen.reaped, []
        for number, faults, io in seen.debts:
            if reaped >= faults > 0:
                reaped -= faults
                grown = [mine - its for mine, its in zip(grown, io, strict=True)]
            elif number == self._look.number:
                left.append((number, faults, io))  # it may have gone after we read its parent
        seen.debts = left
        return [max(0, amount) for amount in grown]


def _split(seen: Seen, raw: Raw) -> tuple[int, int]:
    """CPU time in the program and in the kernel since the look before.

    What the clock says is shared out such that the kernel's part is never more than a tick behind.
    The clock lags while a thread runs, and so may seem to jump by more than all processors can do:
    the rest is the next look's."""
    possible = (raw.t_ns - seen.t_ns) * _CORES
    used = min(possible, max(0, raw.cpu_ns - seen.cpu_ns))
    raw.cpu_ns = seen.cpu_ns + used
    system = min(used, max(0, int(raw.fields[12]) * _TICK_NS - seen.system_ns))
    seen.system_ns += system
    return used - system, system
