"""Which process was started by which, without reading all of /proc every time."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sonde.collector.sensors._files import Reader

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD


class Node:
    """A process that was seen, alive or not: its children outlive it and stay known."""

    __slots__ = ("alive", "children", "is_kernel", "parent", "pid", "start", "threads")

    def __init__(self, pid: int, start: int, is_kernel: bool) -> None:
        self.pid, self.start, self.is_kernel = pid, start, is_kernel
        self.parent: Node | None = None
        self.children: dict[Node, None] = {}  # in the order in which they were seen
        self.alive = True
        self.threads = 0  # as somebody saw who read it


class Tree:
    """All processes that can be seen here, each below the one that it was first seen below."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[int, Node] = {}
        self._newest: int | None = None  # the pid given out last, as of our last scan
        self._scanned = -1  # the reading in which we last scanned
        self._lists: dict[int, list[tuple[Node, int]]] = {}  # while nobody comes or goes

    def list_below(self, pid: int) -> list[tuple[Node, int]]:
        """A process and its descendants with their depth, parents first; 0: all but the kernel's
        threads. We ourselves are left out: a job that is process 1 gets us for a child."""
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
        for node, depth in queue:  # it grows meanwhile
            if (node.pid != os.getpid() or not depth) and not node.is_kernel:
                found.append((node, depth))
                queue += [(child, depth + 1) for child in node.children]
        return [(node, depth) for node, depth in found if node.alive]

    def drop(self, node: Node) -> None:
        """It is gone, as somebody saw who read it."""
        if self._known.get(node.pid) is node:
            del self._known[node.pid]
        node.alive = False
        self._lists.clear()
        # Names of the dead are kept only while they lead to somebody alive.
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
        # A known pid that was given since is another process now.
        if before is not None and newest is not None and before < newest:
            again = [pid for pid in self._known if before < pid <= newest]
        else:
            again = [pid for pid in self._known if _is_between(pid, before, newest)]
        fresh = [
            found for pid in (*again, *(pids - self._known.keys())) for found in self._see(pid)
        ]
        for node, parent in fresh:
            above = self._known.get(parent)
            # The parent may have ended meanwhile, and its pid may be somebody else's.
            if above is not None and above.start <= node.start and above is not node:
                node.parent = above
                above.children[node] = None

    def _see(self, pid: int) -> Iterator[tuple[Node, int]]:
        try:
            data = self._reader.read(f"{self._reader.proc}/{pid}/stat", keep=False)[1]
            fields = data[data.rindex(b")") + 2 :].split()
            start, parent, flags = int(fields[19]), int(fields[1]), int(fields[6])
        except (OSError, ValueError, IndexError):
            return  # gone already
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
    """Was it given after `before`? Pids go round."""
    if before is None or newest is None:
        return True
    return before < pid <= newest if before <= newest else pid > before or pid <= newest
