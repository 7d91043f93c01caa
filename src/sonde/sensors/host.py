"""CPU, memory and load of the machine and of each recorded process."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sonde import _core
from sonde.record import column, f64, i64

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


class Cpu:
    """How the machine's processors were used since the row before."""

    RING_BYTES = 2**20
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the row before", "ns")
    cores: i64 = column("processors online")
    busy_pct: f64 = column("not idle, of all processors together", "%")
    user_pct: f64 = column("in programs", "%")
    system_pct: f64 = column("in the kernel", "%")
    iowait_pct: f64 = column("idle while I/O was under way", "%")
    steal_pct: f64 = column("taken by other virtual machines", "%")
    load1: f64 = column("load average, 1 minute")
    load5: f64 = column("load average, 5 minutes")
    load15: f64 = column("load average, 15 minutes")


class Memory:
    """The machine's memory."""

    RING_BYTES = 2**20
    SCOPE = "host"
    t_ns: i64 = column("when", "ns")
    total_bytes: i64 = column("installed", "bytes")
    available_bytes: i64 = column("could be had without swapping", "bytes")
    used_bytes: i64 = column("total less available", "bytes")
    swap_total_bytes: i64 = column("swap space", "bytes")
    swap_used_bytes: i64 = column("swap space in use", "bytes")


class Process:
    """The recorded process, as the kernel sees it."""

    RING_BYTES = 2**20
    t_ns: i64 = column("when", "ns")
    interval_ns: i64 = column("time since the row before", "ns")
    user_pct: f64 = column("in the program, of one processor", "%")
    system_pct: f64 = column("in the kernel, of one processor", "%")
    rss_bytes: i64 = column("resident memory", "bytes")
    vms_bytes: i64 = column("address space", "bytes")
    threads: i64 = column("threads")


ROWS = (Cpu, Memory, Process)
Row = tuple[type, tuple[object, ...]]


class Sensor:
    """Reads /proc; percentages need two looks, so the first look yields none of them."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._machine: tuple[int, list[int]] | None = None
        self._processes: dict[int, tuple[int, int, int, int]] = {}

    def read_machine(self) -> Iterator[Row]:
        """Rows about the machine."""
        yield from self._read_cpu()
        yield from self._read_memory()

    def _read(self, name: str) -> str:
        with open(f"{self._proc}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()

    def _read_cpu(self) -> Iterator[Row]:
        lines = self._read("stat").splitlines()
        now = _core.clock_ns()
        ticks = [int(word) for word in lines[0].split()[1:9]]
        before, self._machine = self._machine, (now, ticks)
        cores = sum(1 for line in lines if line.startswith("cpu") and line[3:4].isdecimal())
        if before is None:
            return
        # user nice system idle iowait irq softirq steal; guest time is inside user already.
        used = [max(0, new - old) for new, old in zip(ticks, before[1], strict=True)]
        whole = sum(used)
        if whole == 0:
            return
        user, nice, system, idle, iowait, irq, softirq, steal = (100 * u / whole for u in used)
        load = [float(word) for word in self._read("loadavg").split()[:3]]
        busy = 100 - idle - iowait
        yield Cpu, (now, now - before[0], cores, busy, user + nice, system + irq + softirq,
                    iowait, steal, *load)  # fmt: skip

    def _read_memory(self) -> Iterator[Row]:
        found = {}
        for line in self._read("meminfo").splitlines():
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024
        total, available = found["MemTotal"], found["MemAvailable"]
        swap = found["SwapTotal"], found["SwapTotal"] - found["SwapFree"]
        yield Memory, (_core.clock_ns(), total, available, total - available, *swap)

    def read_process(self, pid: int) -> Iterator[Row]:
        """Rows about one process; none once it is gone."""
        try:
            fields = self._read(f"{pid}/stat").rpartition(")")[2].split()
        except OSError:
            self._processes.pop(pid, None)
            return
        now = _core.clock_ns()
        user, system, threads = int(fields[11]), int(fields[12]), int(fields[17])
        start = int(fields[19])
        before = self._processes.get(pid)
        self._processes[pid] = (now, user, system, start)
        if before is None or now == before[0] or before[3] != start:
            return  # the first look at it; a pid may be used again
        passed = now - before[0]
        pct = (100 * (u - b) * _TICK_NS / passed for u, b in zip((user, system), before[1:3]))  # noqa: B905
        yield Process, (now, passed, *pct, int(fields[21]) * _PAGE, int(fields[20]), threads)
