"""Memory of the process and of the devices it uses, read in the cheapest way there is."""

from __future__ import annotations

from collections.abc import Callable

from sonde import _core
from sonde.job.source_context import is_from_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MB = 1e6
_STATM = "/proc/self/statm"
_LOOK_AGAIN = 256  # steps until devices that were not in use are looked at again
# A look is followed by so many times its own time without one, but by no more than a tenth of a
# second: a step that is shorter is left out. A look takes 10 µs to 60 µs, out of a budget of 1 %.
_REST = 2000


class MemoryWriter:
    """Writes one row for the process and one for each device in use.

    The peaks of torch are the program's: it may reset them, we never do. Ours only grow."""

    def __init__(
        self,
        emit: Callable[..., object],
        torch: Any,
        statm: str = _STATM,
        rest: int = _REST,
        guard: Callable[[Callable[..., object]], Callable[..., object]] = lambda call: call,
    ) -> None:
        self._emit, self._torch = emit, torch
        cuda = getattr(torch, "cuda", None)
        # The process's own, and when to look: in C, for that is at every step.
        self.core = self._statm = _core.TorchMemory(
            emit, cuda, guard(self._write_devices), statm, rest
        )
        self._most: dict[int, int] = {}
        self._used: tuple[int, ...] = ()
        self._look_in = 0  # steps
        self.missing: str | None = None  # what this torch does not have

    def at_step(self, step: int) -> int:
        """Write the rows of a step that has just ended, unless the last ones are from a moment ago;
        the nanoseconds it took."""
        return self.core.at_step(step)

    def read(self, device: int | None) -> tuple[float, float, float] | None:
        """Allocated, most allocated so far and cached, in MB, of a CUDA device, or, if it is None,
        of the process; None: it cannot be told. Costs what `at_step` does for one device."""
        if device is None:
            return self.core.read()
        stats = self._read_stats(device)
        if not stats:
            return None
        allocated, peak = _pick(stats, "allocated_bytes", "current", "peak")
        (cached,) = _pick(stats, "reserved_bytes", "current")
        return allocated / _MB, self._raise_most(device, peak) / _MB, cached / _MB

    def close(self) -> None:
        self.core.close()

    def _raise_most(self, device: int, value: int) -> int:
        most = self._most[device] = max(value, self._most.get(device, 0))
        return most

    # ---- devices -------------------------------------------------------------------------------

    def _write_devices(self, t_ns: int, step: int) -> None:
        for device in self._find_used():
            self._write_device(t_ns, step, device)

    def _write_device(self, t_ns: int, step: int, device: int) -> None:
        stats = self._read_stats(device)
        if not stats:
            return
        allocated, peak = _pick(stats, "allocated_bytes", "current", "peak")
        (cached,) = _pick(stats, "reserved_bytes", "current")
        (split,) = _pick(stats, "inactive_split_bytes", "current")
        self._emit(
            t_ns, step, f"cuda:{device}", allocated, self._raise_most(device, peak), cached, split,
            stats.get("num_alloc_retries"), stats.get("num_ooms"),
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
