"""The process that queries NVIDIA's library, so that the collector need not.

A call into a driver may hang for ever or crash the process; here that costs the GPUs' rows and
nothing else. One line on stdin is a request, one line of JSON on stdout the answer."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from types import ModuleType

_SLOW_S = 5.0  # time between two reads of values that rarely change
_GPUS = "/proc/driver/nvidia/gpus"
# Reasons for lowered clocks, except that the GPU is idle.
_THROTTLES = {
    0x2: "app_clocks", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake", 0x100: "display_clocks",
}  # fmt: skip
_RECEIVED, _SENT = 198, 197  # fields of nvmlDeviceGetFieldValues: bytes over PCIe


class Nvml:
    """The library; a value that it does not provide is None."""

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml
        self._refusals = (nvml.NVMLError, AttributeError, TypeError, ValueError)
        self._slow: dict[int, tuple[float, dict[str, object]]] = {}
        self._plugged = _list_plugged()
        nvml.nvmlInit()

    def read(self) -> dict[str, object]:
        """Return the state of all GPUs; raise if the library as a whole fails."""
        plugged = _list_plugged()
        if plugged != self._plugged:  # the library counts GPUs only when it is initialised
            self._plugged = plugged
            self._slow.clear()
            self._nvml.nvmlShutdown()
            self._nvml.nvmlInit()
        gpus, lost = [], []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                gpus.append(self._read_gpu(index, handle))
            except self._refusals as error:
                self._slow.pop(index, None)
                lost.append(f"GPU {index}: {error}")
        return {"gpus": gpus, "lost": lost}

    def _ask(self, name: str, *args: object) -> object:
        """Return the result of a call; None if it fails or if this version does not have it."""
        try:
            return getattr(self._nvml, name)(*args)
        except self._refusals:
            return None

    def _read_gpu(self, index: int, handle: object) -> dict[str, object]:
        util = self._ask("nvmlDeviceGetUtilizationRates", handle)
        memory = self._read_memory(handle)
        power = self._ask("nvmlDeviceGetPowerUsage", handle)
        received, sent = self._read_pcie(handle)
        return {
            "t_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC),
            "gpu": index,
            **self._read_slow(index, handle),
            "util_pct": getattr(util, "gpu", None),
            "memory_util_pct": getattr(util, "memory", None),
            "memory_used_bytes": getattr(memory, "used", None),
            "memory_total_bytes": getattr(memory, "total", None),
            "power_w": power / 1000 if isinstance(power, int) else None,
            "sm_clock_mhz": self._ask("nvmlDeviceGetClockInfo", handle, 1),
            "memory_clock_mhz": self._ask("nvmlDeviceGetClockInfo", handle, 2),
            "temperature_c": self._ask("nvmlDeviceGetTemperature", handle, 0),
            "throttle": self._read_throttle(handle),
            "received": received,
            "sent": sent,
            "processes": self._read_processes(handle),
        }

    def _read_slow(self, index: int, handle: object) -> dict[str, object]:
        read_s, values = self._slow.get(index, (0.0, {}))
        uuid = _text(self._ask("nvmlDeviceGetUUID", handle))
        if time.monotonic() - read_s < _SLOW_S and values.get("uuid") == uuid:
            return values
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        values = {
            "name": _text(self._ask("nvmlDeviceGetName", handle)),
            "uuid": uuid,
            "minor": self._ask("nvmlDeviceGetMinorNumber", handle),  # of /dev/nvidia0
            "power_limit_w": limit / 1000 if isinstance(limit, int) else None,
            "sm_clock_max_mhz": self._ask("nvmlDeviceGetMaxClockInfo", handle, 1),
            "pcie_gen": self._ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            "pcie_gen_max": self._ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            "pcie_width": self._ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
            "pcie_width_max": self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            "corrected": self._ask("nvmlDeviceGetTotalEccErrors", handle, 0, 0),
            "uncorrected": self._ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
        }
        self._slow[index] = (time.monotonic(), values)
        return values

    def _read_memory(self, handle: object) -> object:
        # The second version does not count what the driver reserves for itself, like nvidia-smi.
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        found = self._ask("nvmlDeviceGetMemoryInfo", handle, version) if version else None
        return found or self._ask("nvmlDeviceGetMemoryInfo", handle)

    def _read_throttle(self, handle: object) -> str | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:  # the call had another name before 2023
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        if not isinstance(bits, int):
            return None
        return "+".join(name for bit, name in _THROTTLES.items() if bits & bit) or None

    def _read_pcie(self, handle: object) -> tuple[int | None, int | None]:
        """Return the bytes received and sent since the driver was loaded."""
        fields = self._ask("nvmlDeviceGetFieldValues", handle, [_RECEIVED, _SENT])
        if fields is None:
            return None, None
        received, sent = (
            int(field.value.ullVal) if field.nvmlReturn == 0 else None
            for field in fields  # type: ignore[attr-defined]
        )
        return received, sent

    def _read_processes(self, handle: object) -> list[tuple[int, int | None]] | None:
        found: dict[int, int | None] = {}
        known = False
        for kind in ("Compute", "Graphics"):
            running = self._ask(f"nvmlDeviceGet{kind}RunningProcesses", handle)
            if running is not None:
                known = True
                for one in running:  # type: ignore[attr-defined]
                    found[int(one.pid)] = one.usedGpuMemory
        return list(found.items()) if known else None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _list_plugged() -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(_GPUS)))
    except OSError:
        return ()


def _answer(out: int, what: dict[str, object]) -> None:
    data = json.dumps(what).encode() + b"\n"
    while data:
        data = data[os.write(out, data) :]


def _open(out: int) -> Nvml | None:
    try:
        import pynvml
    except ImportError:
        _answer(out, {"error": "pynvml is not installed; run `pip install nvidia-ml-py`"})
        return None
    try:
        return Nvml(pynvml)
    except pynvml.NVMLError as error:
        _answer(out, {"error": f"NVML: {error}"})
        return None


def main() -> None:
    """Answer requests; arguments are folders with a pynvml to use instead of the installed one."""
    # This process must not outlive the collector, not even while a call hangs.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    sys.path[:0] = sys.argv[1:]
    # What the library prints must not be taken for an answer.
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    nvml: Nvml | None = None
    while sys.stdin.buffer.readline():
        nvml = nvml or _open(out)
        if nvml is None:
            return
        try:
            _answer(out, nvml.read())
        except sys.modules["pynvml"].NVMLError as error:
            # The driver was unloaded, or fails as a whole: the next process starts afresh.
            _answer(out, {"error": f"NVML: {error}"})
            return
