"""NVIDIA GPUs: use, memory, power, clocks, temperature, PCIe, errors, processes."""

from __future__ import annotations

from collections.abc import Iterator

from sonde.collector.sensors._descendants import Tree
from sonde.collector.sensors._files import Look, Past, Row
from sonde.collector.sensors._gpu_client import Gpus
from sonde.session.schema import column, f64, i64, text


class Gpu:
    """Each GPU of the machine, as NVIDIA's management library (NVML) sees it."""

    RING_BYTES = 2**19
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 | None = column("time since the row before; NULL in the first", "ns")
    gpu: i64 = column("its index")
    name: text | None = column("model")
    uuid: text | None = column("its own number, the same after a restart")
    util_pct: f64 | None = column("time in which a kernel ran, of the last second or less", "%")
    memory_util_pct: f64 | None = column("time in which its memory was read or written", "%")
    memory_used_bytes: i64 | None = column("memory in use, by all processes", "bytes")
    memory_total_bytes: i64 | None = column("memory it has", "bytes")
    power_w: f64 | None = column("power it draws", "W")
    power_limit_w: f64 | None = column("power it may draw", "W")
    sm_clock_mhz: i64 | None = column("clock of its processors", "MHz")
    sm_clock_max_mhz: i64 | None = column("the highest that they may have", "MHz")
    memory_clock_mhz: i64 | None = column("clock of its memory", "MHz")
    temperature_c: i64 | None = column("temperature", "°C")
    throttle: text | None = column(
        "what holds the clocks down, joined by +: app_clocks, sw_power_cap, hw_slowdown, "
        "sync_boost, sw_thermal, hw_thermal, hw_power_brake, display_clocks; NULL: nothing"
    )
    pcie_gen: i64 | None = column("generation of its link now; lower while it is idle")
    pcie_gen_max: i64 | None = column("the highest that GPU and machine can do")
    pcie_width: i64 | None = column("lanes of its link now")
    pcie_width_max: i64 | None = column("the most that GPU and machine can do")
    pcie_received_bytes: i64 | None = column("over PCIe to the GPU in the interval", "bytes")
    pcie_sent_bytes: i64 | None = column("over PCIe from the GPU in the interval", "bytes")
    ecc_corrected: i64 | None = column("memory errors that were corrected, in the interval")
    ecc_uncorrected: i64 | None = column("memory errors that were not, in the interval")


class GpuProcess:
    """Memory of each GPU by process: the watched process and its descendants, and all others."""

    RING_BYTES = 2**18
    t_ns: i64 = column("when", "ns")
    gpu: i64 = column("which GPU")
    process: i64 | None = column(
        "pid; NULL: all others together. In a container NVML may name the machine's pids: then all "
        "are others"
    )
    memory_bytes: i64 | None = column("memory in use", "bytes")


ROWS = (Gpu, GpuProcess)

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
