"""The machine's memory and swap."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from sonde.collector.sensors._files import Past, Reader, Row, read_numbers
from sonde.tables.system import Memory

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TRAFFIC = re.compile(rb"^(pswpin|pswpout|pgmajfault) (\d+)$", re.MULTILINE)


class Sensor:
    """Reads /proc/meminfo and /proc/vmstat."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._past = reader, Past()

    def read_machine(self) -> Iterator[Row]:
        """Yield rows about the machine."""
        now, data = self._reader.read(f"{self._reader.proc}/meminfo")
        found = {name: 1024 * number for name, number in read_numbers(data).items()}
        total, available = found[b"MemTotal"], found[b"MemAvailable"]
        swap = found.get(b"SwapTotal", 0), found.get(b"SwapTotal", 0) - found.get(b"SwapFree", 0)
        cached = _add(found, b"Cached", b"Buffers")
        dirty = _add(found, b"Dirty", b"Writeback")
        yield Memory, (now, total, available, total - available, *swap,
                       *self._read_traffic(cached, dirty))  # fmt: skip

    def _read_traffic(self, cached: int | None, dirty: int | None) -> tuple[int | None, ...]:
        """Return the columns from interval_ns on."""
        try:
            now, data = self._reader.read(f"{self._reader.proc}/vmstat")
            counts = {name: int(number) for name, number in _TRAFFIC.findall(data)}
            swapped = [counts.get(b"pswpin", 0) * _PAGE, counts.get(b"pswpout", 0) * _PAGE]
            grown = self._past.move(0, now, [*swapped, counts[b"pgmajfault"]])
        except (OSError, KeyError):
            grown = None
        if grown is None:
            return None, cached, dirty, None, None, None
        return grown[0], cached, dirty, *grown[1]

    def read_process(self, _pid: int) -> Iterator[Row]:
        """Yield nothing: see the sensor `process`."""
        return iter(())


def _add(found: dict[bytes, int], *names: bytes) -> int | None:
    known = [found[name] for name in names if name in found]
    return sum(known) if known else None
