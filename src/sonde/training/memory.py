"""Memory of the process and of the devices it uses, at the cheapest entry there is."""

from __future__ import annotations

import os
from collections.abc import Callable

from sonde import _core
from sonde.host import is_from_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MB = 1e6
_STATM = "/proc/self/statm"
_LOOK_AGAIN = 256  # steps until devices that were not in use are looked at again
_PROCESS = -1


class Memory:
    """Writes one row for the process and one for each device in use.

    The peaks of torch are the program's: it may reset them, we never do. Ours only grow."""

    def __init__(self, emit: Callable[..., object], torch: Any, statm: str = _STATM) -> None:
        self._emit, self._torch = emit, torch
        self._statm = _Statm(statm)
        self._most: dict[int, float] = {}
        self._used: tuple[int, ...] = ()
        self._look_in = 0  # steps
        self.missing: str | None = None  # what this torch does not have

    def at_step(self, step: int) -> int:
        """Write the rows of a step that has just ended; the nanoseconds it took."""
        begin_ns = _core.clock_ns()
        process = self._statm.read()
        if process is not None:
            resident, size = process
            most = self._raise_most(_PROCESS, resident)
            self._emit(begin_ns, step, "cpu", resident, most, size, None, None, None)
        for device in self._find_used():
            self._write_device(begin_ns, step, device)
        return _core.clock_ns() - begin_ns

    def read(self, device: int | None) -> tuple[float, float, float] | None:
        """Allocated, most allocated so far and cached, in MB, of a CUDA device, or, if it is None,
        of the process; None: it cannot be told. Costs what `at_step` does for one device."""
        if device is None:
            process = self._statm.read()
            if process is None:
                return None
            return process[0], self._raise_most(_PROCESS, process[0]), process[1]
        stats = self._read_stats(device)
        if not stats:
            return None
        allocated, peak = _pick(stats, "allocated_bytes", "current", "peak")
        (cached,) = _pick(stats, "reserved_bytes", "current")
        return allocated / _MB, self._raise_most(device, peak / _MB), cached / _MB

    def close(self) -> None:
        self._statm.close()

    def _raise_most(self, device: int, value: float) -> float:
        most = self._most[device] = max(value, self._most.get(device, 0.0))
        return most

    # ---- devices -------------------------------------------------------------------------------

    def _write_device(self, t_ns: int, step: int, device: int) -> None:
        stats = self._read_stats(device)
        if not stats:
            return
        allocated, peak = _pick(stats, "allocated_bytes", "current", "peak")
        (cached,) = _pick(stats, "reserved_bytes", "current")
        (split,) = _pick(stats, "inactive_split_bytes", "current")
        self._emit(
            t_ns, step, f"cuda:{device}", allocated / _MB, self._raise_most(device, peak / _MB),
            cached / _MB, split / _MB, stats.get("num_alloc_retries"), stats.get("num_ooms"),
        )  # fmt: skip

    def _find_used(self) -> tuple[int, ...]:
        """Devices that torch holds memory of; the others are looked at now and then."""
        if not self._is_cuda_used():
            return ()
        if self._look_in == 0:
            self._look_in = _LOOK_AGAIN
            self._used = tuple(
                device for device in range(self._torch.cuda.device_count()) if self._holds(device)
            )
            if not self._used:
                self._look_in = 1  # it has just begun: see again at the next step
        self._look_in -= 1
        return self._used

    def _holds(self, device: int) -> bool:
        stats = self._read_stats(device)
        return bool(stats) and _pick(stats, "reserved_bytes", "peak")[0] > 0

    def _is_cuda_used(self) -> bool:
        """Asking must not begin to use it; not so in a fork, where it cannot be used."""
        cuda = getattr(self._torch, "cuda", None)
        return self.missing is None and cuda is not None and bool(cuda.is_initialized())

    def _read_stats(self, device: int) -> dict[str, Any]:
        """The allocator's own numbers. Not torch.cuda.memory_stats: it sorts a hundred names, which
        takes eight times as long as all the rest."""
        read = getattr(self._torch._C, "_cuda_memoryStats", None)
        if read is None:
            self.missing = "no memory of devices: torch._C._cuda_memoryStats is not there"
        elif self._is_cuda_used():
            try:
                return dict(read(device))
            except RuntimeError as error:  # an allocator that somebody else wrote
                if is_from_signal(error):
                    raise
                self.missing = f"no memory of devices: {error}".partition("\n")[0]
        return {}


def _pick(stats: dict[str, Any], name: str, *which: str) -> tuple[int, ...]:
    """Numbers of one statistic, over all pools; 0 where this torch has none."""
    whole = stats.get(name, {}).get("all", {})
    return tuple(whole.get(one, 0) for one in which)


# ---- the process ---------------------------------------------------------------------------------


class _Statm:
    """/proc/self/statm, kept open: opening it anew takes twenty times as long as reading it."""

    def __init__(self, path: str) -> None:
        self._path, self._fd, self._which = path, -1, (0, 0)
        self._page_mb = os.sysconf("SC_PAGE_SIZE") / _MB

    def read(self) -> tuple[float, float] | None:
        """Resident and whole size in MB; None: the kernel does not tell."""
        for _ in range(2):
            try:
                if self._fd < 0:
                    self._open()
                fields = os.pread(self._fd, 128, 0).split()
            except OSError as error:
                if is_from_signal(error):
                    raise
                fields = []
            if len(fields) == 7 and fields[0].isdigit() and fields[1].isdigit():
                return int(fields[1]) * self._page_mb, int(fields[0]) * self._page_mb
            # A program that becomes a daemon closes all files, and may have this number now.
            self.close()
        return None

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._which = self._identify()

    def close(self) -> None:
        """Close it, if it is still ours to close."""
        fd, which = self._fd, self._which
        try:
            if fd >= 0 and which == self._identify():
                os.close(fd)
        except OSError as error:
            if is_from_signal(error):
                raise
        self._fd = -1

    def _identify(self) -> tuple[int, int]:
        about = os.fstat(self._fd)
        return about.st_dev, about.st_ino
