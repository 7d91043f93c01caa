"""Pressure: how long work was stalled because it lacked processors, memory or I/O."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sonde.collector.sensors._cgroups import Groups
from sonde.collector.sensors._files import Past, Reader, Row
from sonde.errors import Unavailable
from sonde.tables.system import Pressure

ABOUT_PROCESSES = True  # its rows are about the recorded process or what it sees
_RESOURCES = ("cpu", "memory", "io")


class Sensor:
    """Reads /proc/pressure, and the pressure of the process's cgroup (version 2)."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._past = reader, Past()
        self._groups = reader.share(Groups)
        self._machine: tuple[int, list[Row]] = (-1, [])  # number of the reading, and its rows

    def read_machine(self) -> Iterator[Row]:
        """Yield nothing: each session may be in another cgroup, and gets rows of its own."""
        if not os.path.isdir(f"{self._reader.proc}/pressure"):
            raise Unavailable("this kernel does not measure pressure (CONFIG_PSI, psi=1)")
        return iter(())

    def read_process(self, pid: int) -> Iterator[Row]:
        """Yield rows about the pressure of the machine and of the process's cgroup."""
        if self._machine[0] != self._reader.number:
            self._machine = (self._reader.number, list(self._read("machine", self._find_machine())))
        yield from self._machine[1]
        group = self._groups.find_unified(pid)
        if group is not None:
            paths = {name: f"{group}/{name}.pressure" for name in _RESOURCES}
            yield from self._read("cgroup", paths, pid)

    def _find_machine(self) -> dict[str, str]:
        return {name: f"{self._reader.proc}/pressure/{name}" for name in _RESOURCES}

    def _read(self, scope: str, paths: dict[str, str], pid: int = 0) -> Iterator[Row]:
        for resource, path in paths.items():
            try:
                now, data = self._reader.read(path)
            except OSError:
                continue  # the kernel measures it only for some resources
            lines = dict(line.partition(b" ")[::2] for line in data.splitlines())
            totals = [
                int(rest.rpartition(b"total=")[2])
                for rest in (lines.get(b"some"), lines.get(b"full"))
                if rest is not None
            ]
            grown = self._past.move((scope, pid, path), now, totals)
            if grown is not None:
                passed, waited = grown
                shares = [min(100.0, 100e3 * us / passed) for us in waited]
                full = shares[1] if len(shares) > 1 else None
                yield Pressure, (now, passed, resource, scope, shares[0], full)
