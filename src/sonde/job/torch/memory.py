"""Read the memory of the process and of the devices it uses, in the cheapest way possible."""

from __future__ import annotations

from collections.abc import Callable

from sonde import _core
from sonde.job.source_context import is_from_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MB = 1e6
_STATM = "/proc/self/statm"
_RECHECK_STEPS = 256  # steps until devices that were not in use are checked again
# After a reading there is a pause of this many times its duration, but of a tenth of a second at
# most; steps that end meanwhile have no reading. One takes 10 µs to 60 µs, of a budget of 1 %.
_REST = 2000


class MemoryWriter:
    """Writes one row for the process and one for each device in use.

    Torch's peaks belong to the program: it may reset them, and we never do. Ours only grow."""

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
        # The process's memory, and when to read, are in C, because that happens at every step.
        self.core = self._statm = _core.TorchMemory(
            emit, cuda, guard(self._write_devices), statm, rest
        )
        self._most: dict[int, int] = {}
        self._used: tuple[int, ...] = ()
        self._recheck_in = 0  # steps
        self.missing: str | None = None  # what this torch lacks

    def at_step(self, step: int) -> int:
        """Write the rows of a step that has just ended, unless the last ones are very recent;
        return how long that took, in nanoseconds."""
        return self.core.at_step(step)

    def read(self, device: int | None) -> tuple[float, float, float] | None:
        """Return the memory in MB of a CUDA device, or of the process if `device` is None:
        allocated, most allocated so far, and cached. Return None if it cannot be read. This costs
        as much as `at_step` with one device."""
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
            stats.get("allocation", {}).get("all", {}).get("current"),
        )  # fmt: skip

    def _find_used(self) -> tuple[int, ...]:
        """Return the devices on which torch holds memory; the others are checked now and then."""
        if not self._is_cuda_used():
            return ()
        if self._recheck_in == 0:
            self._recheck_in = _RECHECK_STEPS
            self._used = tuple(
                device for device in range(self._torch.cuda.device_count()) if self._holds(device)
            )
            if not self._used:
                self._recheck_in = 1  # CUDA has just been initialised: check again at the next step
        self._recheck_in -= 1
        return self._used

    def _holds(self, device: int) -> bool:
        stats = self._read_stats(device)
        return bool(stats) and _pick(stats, "reserved_bytes", "peak")[0] > 0

    def _is_cuda_used(self) -> bool:
        """Return whether CUDA is initialised, without initialising it; False in a forked child,
        where it cannot be used."""
        cuda = getattr(self._torch, "cuda", None)
        return self.missing is None and cuda is not None and bool(cuda.is_initialized())

    def _read_stats(self, device: int) -> dict[str, Any]:
        """Return the allocator's own numbers. torch.cuda.memory_stats would sort a hundred names,
        which takes eight times as long as everything else."""
        read = getattr(self._torch._C, "_cuda_memoryStats", None)
        if read is None:
            self.missing = "no memory of devices: this torch lacks torch._C._cuda_memoryStats"
        elif self._is_cuda_used():
            try:
                return dict(read(device))
            except RuntimeError as error:  # the program uses an allocator that is not torch's
                if is_from_signal(error):
                    raise
                self.missing = f"no memory of devices: {error}".partition("\n")[0]
        return {}


def _pick(stats: dict[str, Any], name: str, *which: str) -> tuple[int, ...]:
    """Return numbers of one statistic over all pools; 0 where this torch lacks them."""
    whole = stats.get(name, {}).get("all", {})
    return tuple(whole.get(one, 0) for one in which)
