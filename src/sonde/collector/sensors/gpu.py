"""NVIDIA GPUs: utilisation, memory, power, clocks, temperature, PCIe, errors, processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.collector.sensors._descendants import Node, Tree
from sonde.collector.sensors._files import Past, Reader, Row
from sonde.collector.sensors._gpu_client import Gpus
from sonde.collector.sensors._gpu_users import GpuUsers
from sonde.tables.system import Gpu, GpuProcess

# The columns from `gpu` to the counters, which the answer contains under the same names.
_NAMES = tuple(Gpu.__annotations__)
_PLAIN = _NAMES[_NAMES.index("gpu") : _NAMES.index("pcie_received_bytes")]


class Sensor:
    """Queries NVIDIA's library through a separate process: see _gpu_process.py."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._past = reader, Past()
        self._gpus, self._tree = reader.share(Gpus), reader.share(Tree)
        self._users = GpuUsers(reader)
        self._answer: tuple[int, list[dict[str, Any]]] = (-1, [])
        self._asked: set[object] = set()
        self.detail: str | None = None

    def read_machine(self) -> Iterator[Row]:
        """Yield rows about all GPUs; none until NVML answers."""
        answer = self._gpus.ask()
        if answer is None:
            return
        self.detail = "; ".join(answer.lost) or None
        self._answer = (self._reader.number, answer.gpus)
        names = {gpu["uuid"] or gpu["gpu"] for gpu in answer.gpus}
        for gone in self._asked - names:
            self._past.forget([(gone, what) for what in ("time", "pcie", "ecc")])
        self._asked = names
        for gpu in answer.gpus:
            yield self._make_row(gpu)

    def _make_row(self, gpu: dict[str, Any]) -> Row:
        now, who = int(gpu["t_ns"]), gpu["uuid"] or gpu["gpu"]

        def grow(what: str, *counts: object) -> list[int | None]:
            numbers = [count for count in counts if isinstance(count, int)]
            if len(numbers) < len(counts):
                return [None] * len(counts)
            moved = self._past.move((who, what), now, numbers)
            return [None] * len(counts) if moved is None else list(moved[1])

        passed = self._past.move((who, "time"), now, [now])
        return Gpu, (
            now, None if passed is None else passed[0], *(gpu[name] for name in _PLAIN),
            *grow("pcie", gpu["received"], gpu["sent"]),
            *grow("ecc", gpu["corrected"], gpu["uncorrected"]),
        )  # fmt: skip

    def read_process(self, pid: int) -> Iterator[Row]:
        """Yield the memory of a process and its descendants on each GPU; of all processes if `pid`
        is 0."""
        if self._answer[0] != self._reader.number:
            return
        below = [node for node, _depth in self._tree.list_below(pid)]
        mine = {node.pid for node in below}
        named: set[int] = set()
        for gpu in self._answer[1]:
            others: int | None = None
            for process, used in gpu["processes"] or []:
                if process in mine or pid == 0:
                    named.add(process)
                    yield GpuProcess, (gpu["t_ns"], gpu["gpu"], process, used)
                elif used is not None:
                    others = (others or 0) + used
            if others is not None:
                yield GpuProcess, (gpu["t_ns"], gpu["gpu"], None, others)
        if pid:
            yield from self._list_unnamed([node for node in below if node.pid not in named])

    def _list_unnamed(self, nodes: list[Node]) -> Iterator[Row]:
        """Yield who computes on a GPU though NVML does not name it: how much memory is unknown."""
        for node in nodes:
            numbers = self._users.find(node)
            for gpu in self._answer[1] if numbers is not None else []:
                number = gpu["gpu"] if gpu.get("minor") is None else gpu["minor"]
                if not numbers or number in numbers:
                    yield GpuProcess, (gpu["t_ns"], gpu["gpu"], node.pid, None)
