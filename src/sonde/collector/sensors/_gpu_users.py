"""Find the processes that compute on a GPU where NVIDIA's library does not know their pids."""

from __future__ import annotations

import os
import re

from sonde.collector.sensors._descendants import Node
from sonde.collector.sensors._files import Reader

# Whoever merely asks how the GPUs are, as nvidia-smi does, has the first kind open. Who asks CUDA
# whether there are any, as `torch.cuda.is_available()` does, has the second one open as well. Only
# what computes has it in its memory. /dev/dxg is a GPU that Windows shares with Linux.
_GPU = re.compile(r"/dev/nvidia(\d+)$")
_CUDA, _SHARED = "/dev/nvidia-uvm", "/dev/dxg"
_FIRST_S, _LONGEST_S = 1.0, 60.0  # between two looks at a process that does not compute yet


class GpuUsers:
    """Looks at the open files of processes, less and less often, until they compute on a GPU."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._found: dict[Node, frozenset[int]] = {}  # the numbers in the names of its devices
        self._next: dict[Node, tuple[int, float]] = {}  # when to look again, and the pause after it

    def find(self, node: Node) -> frozenset[int] | None:
        """Return the numbers of the devices that a process computes on, of none if only the driver
        knows which; None if it computes on no GPU."""
        known = self._found.get(node)
        if known is not None:
            return known
        now_ns = self._reader.clock()
        next_ns, pause_s = self._next.get(node, (0, _FIRST_S))
        if now_ns < next_ns:
            return None
        self._forget_dead()
        self._next[node] = (now_ns + int(pause_s * 1e9), min(2 * pause_s, _LONGEST_S))
        names = self._list_files(node.pid)
        if _SHARED not in names and not (_CUDA in names and self._has_mapped(node.pid, _CUDA)):
            return None
        numbers = (_GPU.match(name) for name in names)
        self._found[node] = found = frozenset(int(one[1]) for one in numbers if one)
        return found

    def _list_files(self, pid: int) -> set[str]:
        folder, names = f"{self._reader.proc}/{pid}/fd", set()
        try:
            for file in os.listdir(folder):
                try:
                    names.add(os.readlink(f"{folder}/{file}"))
                except OSError:
                    continue  # closed meanwhile
        except OSError:
            pass  # it has ended, or belongs to someone else
        return names

    def _has_mapped(self, pid: int, name: str) -> bool:
        try:
            with open(f"{self._reader.proc}/{pid}/maps", "rb") as file:
                return any(line.rstrip().endswith(name.encode()) for line in file)
        except OSError:
            return False  # as above

    def _forget_dead(self) -> None:
        for known in (self._found, self._next):
            for node in [node for node in known if not node.alive]:
                del known[node]
