"""Track which process started which, without reading all of /proc every time."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sonde.collector.sensors._files import Reader

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD


class Node:
    """A known process, alive or not: it is kept while any descendants are alive."""

    __slots__ = ("alive", "children", "is_kernel", "parent", "pid", "start", "threads")

    def __init__(self, pid: int, start: int, is_kernel: bool) -> None:
        self.pid, self.start, self.is_kernel = pid, start, is_kernel
        self.parent: Node | None = None
        self.children: dict[Node, None] = {}  # in the order in which they were seen
        self.alive = True
        self.threads = 0  # set by whoever reads the process


class Tree:
    """All visible processes, each below the parent it was first seen with."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[int, Node] = {}
        self._newest: int | None = None  # the pid given out last, as of our last scan
        self._scanned = -1  # the reading in which we last scanned
        self._lists: dict[int, list[tuple[Node, int]]] = {}  # while nobody comes or goes

    def list_below(self, pid: int) -> list[tuple[Node, int]]:
        """Return a process and its descendants with their depth, parents first; if `pid` is 0, all
        processes but the kernel's threads. The collector is left out: it becomes a child of a job
        that is process 1."""
        if self._scanned != self._reader.number:
            self._scanned = self._reader.number
            self._scan()
        if pid not in self._lists:
            self._lists[pid] = self._list(pid)
        return self._lists[pid]

    def _list(self, pid: int) -> list[tuple[Node, int]]:
        if pid == 0:
            roots = [node for node in self._known.values() if node.parent is None]
        else:
            roots = [self._known[pid]] if pid in self._known else []
        found, queue = [], [(node, 0) for node in roots]
        for node, depth in queue:  # the queue grows meanwhile
            if (node.pid != os.getpid() or not depth) and not node.is_kernel:
                found.append((node, depth))
                queue += [(child, depth + 1) for child in node.children]
        return [(node, depth) for node, depth in found if node.alive]

    def drop(self, node: Node) -> None:
        """Note that a process has ended."""
        if self._known.get(node.pid) is node:
            del self._known[node.pid]
        node.alive = False
        self._lists.clear()
        # Dead processes are kept only while they have living descendants.
        while not node.alive and not node.children and node.parent is not None:
            parent = node.parent
            parent.children.pop(node, None)
            node.parent = None
            node = parent

    def _scan(self) -> None:
        newest = self._read_newest()
        before, self._newest = self._newest, newest
        if newest is not None and newest == before:
            return  # nothing was started since
        pids = {int(name) for name in os.listdir(self._reader.proc) if name.isdecimal()}
        for gone in self._known.keys() - pids:
            self.drop(self._known[gone])
        # A known pid that was assigned again since then is another process now.
        if before is not None and newest is not None and before < newest:
            again = [pid for pid in self._known if before < pid <= newest]
        else:
            again = [pid for pid in self._known if _is_between(pid, before, newest)]
        fresh = [
            found for pid in (*again, *(pids - self._known.keys())) for found in self._add(pid)
        ]
        for node, parent in fresh:
            above = self._known.get(parent)
            # The parent may have ended meanwhile, and its pid may belong to another process.
            if above is not None and above.start <= node.start and above is not node:
                node.parent = above
                above.children[node] = None

    def _add(self, pid: int) -> Iterator[tuple[Node, int]]:
        try:
            data = self._reader.read(f"{self._reader.proc}/{pid}/stat", keep=False)[1]
            fields = data[data.rindex(b")") + 2 :].split()
            start, parent, flags = int(fields[19]), int(fields[1]), int(fields[6])
        except (OSError, ValueError, IndexError):
            return  # the process has already ended
        known = self._known.get(pid)
        if known is not None:
            if known.start == start:
                return
            self.drop(known)
        self._lists.clear()
        node = self._known[pid] = Node(pid, start, bool(flags & _KERNEL_THREAD))
        yield node, parent

    def _read_newest(self) -> int | None:
        try:
            return int(self._reader.read(f"{self._reader.proc}/loadavg")[1].split()[-1])
        except (OSError, ValueError, IndexError):
            return None


def _is_between(pid: int, before: int | None, newest: int | None) -> bool:
    """Return whether the pid was assigned after `before`; pids wrap around."""
    if before is None or newest is None:
        return True
    return before < pid <= newest if before <= newest else pid > before or pid <= newest
