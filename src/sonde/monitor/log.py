"""log_result.csv: one line for each reading; the file is valid at every moment."""

from __future__ import annotations

import csv
import io
import os
from typing import IO

from sonde.errors import Error
from sonde.monitor.folder import open_new
from sonde.monitor.scope import GIB, KIB, Reading
from sonde.session.files import Replacement

NAME = "log_result.csv"
COLUMNS = ("timestamp", "cpu_usage(%)", "mem_used(GiByte)", "mem_total(GiByte)",
           "IO_read(KiByte/s)", "IO_write(KiByte/s)")  # fmt: skip
NETWORK_COLUMNS = ("network_receive(KiByte/s)", "network_transmit(KiByte/s)")
# Before these names where the traffic is not only that of what is watched.
WHOLE = "machine_"
GPU_COLUMNS = ("gpu_usage", "gpu_mem_usage", "gpu_mem_used", "gpu_mem_total")


class Log:
    """Writes each reading as one complete line. When a GPU first appears, the file is rewritten
    with columns for it, whose earlier cells are empty."""

    def __init__(
        self, folder: str, gpus: list[int] | None, *, has_whole_network: bool = False
    ) -> None:
        self._prefix = WHOLE if has_whole_network else ""
        self._path = os.path.join(folder, NAME)
        self._is_fixed = gpus is not None
        self.gpus = sorted(gpus or [])
        self._file = self._open()

    def _open(self, old: list[list[str]] | None = None) -> IO[str]:
        with Replacement(self._path) as hidden:
            file = open_new(hidden)
            writer = csv.writer(file)
            names = [f"{name}_{gpu}" for gpu in self.gpus for name in GPU_COLUMNS]
            network = [self._prefix + name for name in NETWORK_COLUMNS]
            writer.writerow([*COLUMNS, *network, *names])
            writer.writerows(old or [])
            file.flush()
        return file

    def write(self, reading: Reading, begin_ns: int) -> None:
        """Write a reading."""
        if not self._is_fixed and not set(reading.gpus) <= set(self.gpus):
            self._widen(set(reading.gpus))
        line = io.StringIO()
        csv.writer(line).writerow(self._make_row(reading, begin_ns))
        # One write for each line: whoever reads the file, or kills us, finds complete lines.
        try:
            self._file.write(line.getvalue())
            self._file.flush()
        except OSError as error:
            raise Error(f"{self._path}: {error.strerror}") from None

    def _make_row(self, reading: Reading, begin_ns: int) -> list[str]:
        cells = [_show((reading.t_ns - begin_ns) / 1e9), _show(reading.cpu_pct),
                 *(_show(value, GIB) for value in (reading.used_bytes, reading.total_bytes)),
                 *(_show(rate, KIB) for rate in reading.rates)]  # fmt: skip
        for index in self.gpus:
            gpu = reading.gpus.get(index)
            if gpu is None:
                cells += [""] * len(GPU_COLUMNS)
            else:
                cells += [_show(gpu.util_pct), _show(gpu.memory_util_pct),
                          _show(gpu.used_bytes, GIB), _show(gpu.total_bytes, GIB)]  # fmt: skip
        return cells

    def _widen(self, more: set[int]) -> None:
        before = list(self.gpus)
        self.gpus = sorted({*before, *more})
        self._file.close()
        with open(self._path, encoding="utf-8", newline="") as file:
            old = list(csv.reader(file))[1:]
        at, size = len(COLUMNS), len(GPU_COLUMNS)
        places = {gpu: at + size * place for place, gpu in enumerate(before)}
        wide = []
        for row in old:
            cells = row[:at]
            for gpu in self.gpus:
                first = places.get(gpu)
                cells += [""] * size if first is None else row[first : first + size]
            wide.append(cells)
        self._file = self._open(wide)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _show(value: float | None, unit: int = 1) -> str:
    return "" if value is None else f"{value / unit:.10g}"
