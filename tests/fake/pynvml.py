"""NVIDIA's library as a script beside this file has it; see the fixture `fake_nvml`.

script.json: {"begun_s", "repeat_s", "steps": [{"at": seconds, "do": …, "gpus": [{…}, …]}, …]}."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

SCRIPT = Path(__file__).with_name("script.json")
nvmlMemory_v2 = 2

# What a GPU has where the script does not say.
PLAIN = {
    "name": "Fake H100", "uuid": None, "util_pct": 0, "memory_util_pct": 0, "memory_used_bytes": 0,
    "memory_total_bytes": 80 * 2**30, "power_w": 100.0, "power_limit_w": 700.0, "sm_clock_mhz": 1980,
    "sm_clock_max_mhz": 1980, "memory_clock_mhz": 2619, "temperature_c": 40, "throttle": 0,
    "pcie_gen": 5, "pcie_gen_max": 5, "pcie_width": 16, "pcie_width_max": 16, "received_per_s": 0,
    "sent_per_s": 0, "corrected": 0, "uncorrected": 0, "processes": [], "minor": None,
    "errors": [], "lost": False,
}  # fmt: skip
now: dict = {"gpus": []}


class NVMLError(Exception):
    pass


def nvmlInit() -> None:
    nvmlDeviceGetCount()


def nvmlShutdown() -> None:
    pass


def nvmlDeviceGetCount() -> int:
    """Each look begins here: the step of the script whose time has come."""
    global now
    script = json.loads(SCRIPT.read_text())
    passed = time.monotonic() - script["begun_s"]
    if script["repeat_s"]:
        passed %= script["repeat_s"]
    now = [step for step in script["steps"] if step.get("at", 0) <= passed][-1]
    match now.get("do"):
        case "hang":
            time.sleep(3600)
        case "crash":
            os.abort()
        case "fail":
            raise NVMLError("Unknown Error")
        case "print":
            os.write(1, b"a line that nobody asked for\n")
    return len(now["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> dict:
    gpu = {**PLAIN, "uuid": f"GPU-{index}", **now["gpus"][index]}
    if gpu["lost"]:
        raise NVMLError("GPU is lost")
    return gpu


def _make(name: str, read):
    def call(gpu: dict, *args: object):
        if name in gpu["errors"] or "all" in gpu["errors"]:
            raise NVMLError("Not Supported")
        return read(gpu, *args)

    globals()[name] = call


def _field(gpu: dict, field: int) -> SimpleNamespace:
    rate = gpu["received_per_s" if field == 198 else "sent_per_s"]
    value = SimpleNamespace(ullVal=int(rate * time.monotonic()))
    return SimpleNamespace(nvmlReturn=0, value=value)


def _processes(gpu: dict) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu["processes"]]


for _name, _read in {
    "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(
        gpu=gpu["util_pct"], memory=gpu["memory_util_pct"]
    ),
    "nvmlDeviceGetMemoryInfo": lambda gpu, version=None: SimpleNamespace(
        used=gpu["memory_used_bytes"], total=gpu["memory_total_bytes"]
    ),
    "nvmlDeviceGetName": lambda gpu: gpu["name"],
    "nvmlDeviceGetUUID": lambda gpu: gpu["uuid"],
    "nvmlDeviceGetMinorNumber": lambda gpu: gpu["minor"],
    "nvmlDeviceGetPowerUsage": lambda gpu: int(gpu["power_w"] * 1000),
    "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: int(gpu["power_limit_w"] * 1000),
    "nvmlDeviceGetClockInfo": lambda gpu, kind: gpu[
        "sm_clock_mhz" if kind == 1 else "memory_clock_mhz"
    ],
    "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: gpu["sm_clock_max_mhz"],
    "nvmlDeviceGetTemperature": lambda gpu, sensor: gpu["temperature_c"],
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu["throttle"],
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: gpu["pcie_gen"],
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: gpu["pcie_gen_max"],
    "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: gpu["pcie_width"],
    "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: gpu["pcie_width_max"],
    "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, counter: gpu[
        "uncorrected" if kind else "corrected"
    ],
    "nvmlDeviceGetFieldValues": lambda gpu, fields: [_field(gpu, field) for field in fields],
    "nvmlDeviceGetComputeRunningProcesses": _processes,
    "nvmlDeviceGetGraphicsRunningProcesses": lambda gpu: [],
}.items():
    _make(_name, _read)
