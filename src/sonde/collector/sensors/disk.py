"""Disks: what they read and wrote, and how busy they were."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sonde.collector.sensors._files import Past, Reader, Row
from sonde.tables.system import Disk

_SECTOR = 512  # bytes in /proc/diskstats, whatever the device's own sectors are


class Sensor:
    """Reads /proc/diskstats."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._past = reader, Past()
        self._proper: dict[bytes, bool] = {}

    def read_machine(self) -> Iterator[Row]:
        """Yield rows about the machine."""
        now, data = self._reader.read(f"{self._reader.proc}/diskstats")
        lines = [words for words in (line.split() for line in data.splitlines()) if len(words) > 12]
        names = {words[2] for words in lines}
        for gone in self._proper.keys() - names:
            del self._proper[gone]
            self._past.forget([gone])
        for words in lines:
            if self._is_proper(words[2]):
                reads, sectors_read, writes, sectors_written, busy_ms = (
                    int(words[at]) for at in (3, 5, 7, 9, 12)
                )
                grown = self._past.move(
                    words[2], now, [sectors_read, sectors_written, reads, writes, busy_ms]
                )
                if grown is not None:
                    passed, (read, written, *requests, busy) = grown
                    yield Disk, (now, passed, os.fsdecode(words[2]), read * _SECTOR,
                                 written * _SECTOR, *requests,
                                 min(100.0, 100e6 * busy / passed))  # fmt: skip

    def _is_proper(self, name: bytes) -> bool:
        """Return whether this is a disk whose traffic no other device counts."""
        if name not in self._proper:
            self._proper[name] = self._check_proper(os.fsdecode(name))
        return self._proper[name]

    def _check_proper(self, name: str) -> bool:
        # A RAM disk is not a disk, and the file of a loop device is on another disk.
        if name.startswith(("loop", "ram", "zram")):
            return False
        folder = f"{self._reader.sys}/block/{name.replace('/', '!')}"
        try:
            if os.listdir(f"{folder}/slaves"):
                return False
            with open(f"{folder}/hidden", "rb") as file:  # one of several paths to the same disk
                return file.read().strip() != b"1"
        except OSError:
            return os.path.isdir(folder)  # partitions have no folder here

    def read_process(self, _pid: int) -> Iterator[Row]:
        """Yield nothing: see the sensor `process`."""
        return iter(())
