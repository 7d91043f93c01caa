"""Read what is slow to read of a process, a few processes at a time so that it stays cheap."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sonde.collector.sensors._descendants import Node
from sonde.collector.sensors._files import Reader

# Threads and processes read per second, at 30 µs each; fewer if there are many processes, because
# these take time themselves.
_RATE, _LEAST = 120.0, 15.0
_PSS_NS = 30 * 10**9
_PSS_SHARE = 500  # reading it blocks the process's own memory calls: at most 0.2 % of the time

Values = tuple[float | None, int | None, int | None, int | None, int | None, int | None]
NOTHING: Values = (None,) * 6


class Turn:
    """What was read the last time it was a process's turn."""

    __slots__ = ("counts", "pss_due_ns", "start", "t_ns")

    def __init__(self, start: int) -> None:
        self.start, self.t_ns, self.pss_due_ns = start, 0, 0
        # By thread: nanoseconds of waiting for a processor, and context switches of both kinds.
        self.counts: dict[str, tuple[int, int, int]] | None = None


class Details:
    """Reads waits for processors, context switches, swap, open files and PSS of many processes."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._turns: dict[int, Turn] = {}
        self._read: dict[int, Values] = {}  # in this reading
        self._tokens = self._rate = _RATE
        self._began_ns = reader.clock()
        self._pss_done = False

    def begin(self) -> None:
        """Begin the next reading; how much it may read depends on the time since the last one."""
        now = self._reader.clock()
        self._tokens = min(_RATE, self._tokens + self._rate * (now - self._began_ns) / 1e9)
        self._began_ns, self._pss_done = now, False
        self._read.clear()

    def read(self, nodes: Sequence[Node]) -> None:
        """Read as many processes as there is time for, those not read for longest first."""
        self._rate = max(_LEAST, _RATE - len(nodes))
        if len(self._turns) > 4 * len(nodes) + 1024:
            self._turns.clear()
        for node in nodes:
            turn = self._turns.get(node.pid)
            if turn is None or turn.start != node.start:
                self._turns[node.pid] = Turn(node.start)
        for node in sorted(nodes, key=lambda node: self._turns[node.pid].t_ns):
            if self._tokens <= 0:
                return
            if node.pid not in self._read:
                self._read[node.pid] = self._read_node(node, self._turns[node.pid])

    def take(self, pid: int) -> Values:
        """Return wait share, PSS, swap, open files and switches of both kinds; all None if it was
        not this process's turn."""
        return self._read.get(pid, NOTHING)

    def _read_node(self, node: Node, turn: Turn) -> Values:
        folder = f"{self._reader.proc}/{node.pid}"
        now, before = self._reader.clock(), turn.t_ns
        counts, swap = self._read_threads(folder, node)
        self._tokens -= 1 + len(counts or ())
        known, turn.counts, turn.t_ns = turn.counts, counts, now
        pss = self._read_pss(folder, turn, now)
        fds = _count_files(folder)
        if counts is None or known is None or now <= before:
            return None, pss, swap, fds, None, None
        # A new thread counts from zero; what a thread added between its last reading and its end is
        # lost.
        new = [tuple(map(_grow, counts[tid], known.get(tid, (0, 0, 0)))) for tid in counts]
        waited, own, forced = (sum(column) for column in zip(*new, strict=True))
        return 100 * waited / (now - before), pss, swap, fds, own, forced

    def _read_threads(
        self, folder: str, node: Node
    ) -> tuple[dict[str, tuple[int, int, int]] | None, int | None]:
        """Return the counters of each thread, and how much of the process is swapped out."""
        counts, swap = {}, None
        try:
            threads = [str(node.pid)] if node.threads == 1 else os.listdir(f"{folder}/task")
        except OSError:
            return None, None
        for tid in threads:
            try:
                waited = self._reader.read(f"{folder}/task/{tid}/schedstat", keep=False)[1].split()
                status = self._reader.read(f"{folder}/task/{tid}/status", keep=False)[1]
                switches = (_find(status, name) for name in (b"\nvoluntary", b"\nnonvoluntary"))
                own, forced = (number or 0 for number in switches)
                counts[tid] = (int(waited[1]), own, forced)
                swap = _find(status, b"\nVmSwap") if swap is None else swap
            except (OSError, ValueError, IndexError):
                continue  # the thread has ended
        return counts or None, None if swap is None else swap * 1024

    def _read_pss(self, folder: str, turn: Turn, now: int) -> int | None:
        if self._pss_done or now < turn.pss_due_ns:
            return None
        self._pss_done = True
        try:
            data = self._reader.read(f"{folder}/smaps_rollup", keep=False)[1]
        except OSError:  # another user's process, or an old kernel
            turn.pss_due_ns = now + _PSS_NS
            return None
        took = self._reader.clock() - now
        turn.pss_due_ns = now + max(_PSS_NS, _PSS_SHARE * took)
        found = _find(data, b"\nPss")
        return None if found is None else found * 1024


def _grow(new: int, old: int) -> int:
    return max(0, new - old)


def _find(data: bytes, name: bytes) -> int | None:
    """Return the number in the line that begins with `name`."""
    at = data.find(name)
    if at < 0:
        return None
    words = data[data.index(b":", at) + 1 : at + 80].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else None


def _count_files(folder: str) -> int | None:
    try:
        # Since Linux 6.2 this is the number of open files, so they need not be listed.
        return os.stat(f"{folder}/fd").st_size or len(os.listdir(f"{folder}/fd"))
    except OSError:
        return None
