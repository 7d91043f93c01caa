"""The cgroup of each recorded process: usage and limits, as in a container."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sonde.collector.sensors._cgroups import Group, Groups
from sonde.collector.sensors._files import Past, Reader, Row, read_numbers
from sonde.tables.system import Cgroup

ABOUT_PROCESSES = True  # its rows are about the recorded process or what it sees
_LIMITS_EVERY = 10  # readings between two reads of the limits
_UNLIMITED = 2**60  # version 1 gives a huge number where there is no limit


class Sensor:
    """Reads /proc/PID/cgroup and what it names under /sys/fs/cgroup."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._past = reader, Past()
        self._groups = reader.share(Groups)
        self._limits: dict[str, tuple[int, tuple[float | None, int | None]]] = {}

    def read_machine(self) -> Iterator[Row]:
        """Yield nothing: each session may be in another cgroup."""
        return iter(())

    def read_process(self, pid: int) -> Iterator[Row]:
        """Yield a row about the cgroup of a process; none once it has ended."""
        try:
            group = self._groups.find(pid)
            cores: int | None = len(os.sched_getaffinity(pid or 1))
        except OSError:
            return
        now = self._reader.clock()
        who = (pid, group.path)
        # Each counter has a past of its own, so that a missing file costs only one value.
        passed = self._past.move((who, "time"), now, [0])
        cpu = self._past.move((who, "cpu"), self._reader.clock(), self._read_cpu(group))
        periods = self._past.move((who, "periods"), now, self._read_periods(group))
        kills = self._past.move((who, "kills"), now, self._read_kills(group))
        traffic = self._past.move((who, "io"), now, self._read_traffic(group))
        shares = [None, None] if cpu is None else [100 * ns / cpu[0] for ns in cpu[1]]
        limited = periods is not None and periods[1][0] > 0
        yield Cgroup, (
            now, None if passed is None else passed[0], group.version, group.path, *shares,
            100 * periods[1][1] / periods[1][0] if periods is not None and limited else None,
            self._find_limits(group)[0], cores, *self._read_memory(group),
            None if kills is None else kills[1][0],
            *((None, None) if traffic is None else traffic[1]),
        )  # fmt: skip

    # ---- each of these knows both versions, and returns nothing if the kernel has no number ------

    def _read(self, group: Group, controller: str, file: str) -> bytes | None:
        path = group.name(controller, file)
        try:
            return None if path is None else self._reader.read(path)[1]
        except OSError:
            return None

    def _read_cpu(self, group: Group) -> list[int]:
        """Return the nanoseconds spent in programs and in the kernel."""
        if group.is_unified("cpuacct"):
            counts = read_numbers(self._read(group, "cpuacct", "cpu.stat") or b"")
            if b"user_usec" not in counts:
                return []
            return [1000 * counts[b"user_usec"], 1000 * counts[b"system_usec"]]
        parts = [self._read(group, "cpuacct", f"cpuacct.usage_{who}") for who in ("user", "sys")]
        return [int(part) for part in parts if part] if all(parts) else []

    def _read_periods(self, group: Group) -> list[int]:
        """Return the periods of the processor limit, and how many were throttled."""
        counts = read_numbers(self._read(group, "cpu", "cpu.stat") or b"")
        if b"nr_periods" not in counts:
            return []
        return [counts[b"nr_periods"], counts[b"nr_throttled"]]

    def _read_cpu_limit(self, group: Group) -> float | None:
        limits = []
        for folder in group.list_up("cpu"):
            words = self._read_words(f"{folder}/cpu.max")
            if not group.is_unified("cpu"):
                quota = self._read_words(f"{folder}/cpu.cfs_quota_us")
                words = quota + self._read_words(f"{folder}/cpu.cfs_period_us")
            if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
                limits.append(int(words[0]) / int(words[1]))
        return min(limits, default=None)

    def _read_memory(self, group: Group) -> list[int | None]:
        """Return the memory in use, its limit, and its peak."""
        if group.is_unified("memory"):
            use, peak = "memory.current", "memory.peak"
        else:
            use, peak = "memory.usage_in_bytes", "memory.max_usage_in_bytes"
        known = "memory" not in group.roots
        used, top = (self._read(group, "memory", file) if known else None for file in (use, peak))
        return [
            None if used is None else int(used),
            self._find_limits(group)[1],
            None if top is None else int(top),
        ]

    def _find_limits(self, group: Group) -> tuple[float | None, int | None]:
        """Return the limits of processors and memory. Every cgroup above may set one, too, and they
        rarely change."""
        number, limits = self._limits.get(group.path, (-_LIMITS_EVERY, (None, None)))
        if self._reader.number - number >= _LIMITS_EVERY:
            limits = (self._read_cpu_limit(group), self._read_memory_limit(group))
            self._limits[group.path] = (self._reader.number, limits)
        return limits

    def _read_memory_limit(self, group: Group) -> int | None:
        file = "memory.max" if group.is_unified("memory") else "memory.limit_in_bytes"
        limits = []
        for folder in group.list_up("memory"):
            words = self._read_words(f"{folder}/{file}")
            if words and words[0].isdigit() and int(words[0]) < _UNLIMITED:
                limits.append(int(words[0]))
        return min(limits, default=None)

    def _read_kills(self, group: Group) -> list[int]:
        file = "memory.events" if group.is_unified("memory") else "memory.oom_control"
        counts = read_numbers(self._read(group, "memory", file) or b"")
        return [counts[b"oom_kill"]] if b"oom_kill" in counts else []

    def _read_traffic(self, group: Group) -> list[int]:
        """Return the bytes read and written on all devices."""
        unified = group.is_unified("blkio")
        file = "io.stat" if unified else "blkio.throttle.io_service_bytes"
        data = self._read(group, "blkio", file)
        if data is None or "blkio" in group.roots:
            return []
        read = written = 0
        for line in data.splitlines():
            device, *words = line.split()
            if self._is_stacked(device):
                continue
            if unified:
                counts = dict(word.split(b"=") for word in words if b"=" in word)
                read += int(counts.get(b"rbytes", 0))
                written += int(counts.get(b"wbytes", 0))
            elif len(words) == 2:
                read += int(words[1]) if words[0] == b"Read" else 0
                written += int(words[1]) if words[0] == b"Write" else 0
        return [read, written]

    def _is_stacked(self, device: bytes) -> bool:
        """Return whether the device is built on others, which count the same bytes again."""
        try:
            return bool(os.listdir(f"{self._reader.sys}/dev/block/{os.fsdecode(device)}/slaves"))
        except OSError:
            return False

    def _read_words(self, path: str) -> list[bytes]:
        try:
            return self._reader.read(path)[1].split()
        except OSError:
            return []
