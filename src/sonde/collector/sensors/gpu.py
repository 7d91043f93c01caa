"""NVIDIA GPUs: use, memory, power, clocks, temperature, PCIe, errors, processes."""

from __future__ import annotations

from collections.abc import Iterator

from sonde.collector.sensors._descendants import Tree
from sonde.collector.sensors._files import Look, Past, Row
from sonde.collector.sensors._gpu_client import Gpus
from sonde.tables.system import Gpu, GpuProcess

# The columns between `gpu` and the counters, as the answer has them.
_PLAIN = tuple(name for name in Gpu.__annotations__ if name not in ("t_ns", "interval_ns"))[:-4]


class Sensor:
    """Asks a process of its own, see _nvml.py."""

    def __init__(self, look: Look) -> None:
        self._look, self._past = look, Past()
        self._gpus, self._tree = look.share(Gpus), look.share(Tree)
        self._answer: tuple[int, list[dict[str, object]]] = (-1, [])
        self._asked: set[object] = set()
        self.detail: str | None = None

    def read_machine(self) -> Iterator[Row]:
        """Rows about all GPUs; none while NVML is at it."""
        answer = self._gpus.ask()
        if answer is None:
            return
        gpus, lost = answer["gpus"], answer["lost"]
        assert isinstance(gpus, list) and isinstance(lost, list)
        self.detail = "; ".join(lost) or None
        self._answer = (self._look.number, gpus)
        names = {gpu["uuid"] or gpu["gpu"] for gpu in gpus}
        for gone in self._asked - names:
            self._past.forget([(gone, what) for what in ("time", "pcie", "ecc")])
        self._asked = names
        for gpu in gpus:
            yield self._make_row(gpu)

    def _make_row(self, gpu: dict[str, object]) -> Row:
        now, who = gpu["t_ns"], gpu["uuid"] or gpu["gpu"]
        assert isinstance(now, int)

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
        """The memory of a process and its descendants on each GPU; 0: of all."""
        if self._answer[0] != self._look.number:
            return
        mine = {node.pid for node, _depth in self._tree.list_below(pid)}
        for gpu in self._answer[1]:
            others: int | None = None
            processes = gpu["processes"] or []
            assert isinstance(processes, list)
            for process, used in processes:
                if process in mine or pid == 0:
                    yield GpuProcess, (gpu["t_ns"], gpu["gpu"], process, used)
                elif used is not None:
                    others = (others or 0) + used
            if others is not None:
                yield GpuProcess, (gpu["t_ns"], gpu["gpu"], None, others)
