"""What readings cost the collector, with 8 GPUs and 200 processes; one reading beside psutil."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import child
from result import Result, interleave

PROCESSES, GPUS, SECONDS = 200, 8, 30
_KEEP = """
import json, os, signal, sys, time
pids = []
for _ in range(int(sys.argv[1])):
    pids.append(os.fork())
    if pids[-1] == 0:
        signal.alarm(600)
        while True:
            time.sleep(0.5)
print(json.dumps(pids), flush=True)
sys.stdin.read()
for pid in pids:
    os.kill(pid, signal.SIGKILL)
"""
FAKE = Path(__file__).resolve().parent.parent / "tests" / "fake" / "pynvml.py"


def measure(rounds: int) -> list[Result]:
    """The collector at its defaults, as when a job runs; then one reading, again and again."""
    shares, parts = [], []
    for _ in range(max(1, rounds // 2)):
        share, part = measure_collector()
        shares.append(share)
        parts.append(part)
    with crowd() as pids, child.open_root() as root:
        readings = interleave(
            max(3, rounds),
            {
                "sonde": lambda: child.call(read_sensors, pids, root=root),
                "psutil": lambda: child.call(read_with_psutil, pids, root=root),
            },
        )
    gpu = sorted(parts)[len(parts) // 2]
    return [
        Result(
            f"sensors: collector's CPU of one core, {PROCESSES} processes, {GPUS} GPUs",
            "%",
            shares,
            1.0,
            note=f"defaults, all it does, over {SECONDS} s; {gpu:.2f} % of it the process that "
            "asks NVML (a fake one)",
        ),
        Result(
            f"sensors: CPU time of one reading of {PROCESSES} processes",
            "ms",
            readings.pop("sonde"),
            peers=readings,
            note="the same values of the machine and of each process; psutil without run_wait_pct",
        ),
    ]


def measure_collector() -> tuple[float, float]:
    """Percent of a core of the collector with the process that asks NVML; and of that one alone."""
    with child.open_root() as root:
        fake = Path(root, ".nvml")
        fake.mkdir(mode=0o700)
        shutil.copy(FAKE, fake)
        gpus = [{"util_pct": 50, "processes": [[1, 2**30]]}] * GPUS
        script = {"begun_s": 0.0, "repeat_s": 0, "steps": [{"at": 0, "gpus": gpus}]}
        (fake / "script.json").write_text(json.dumps(script))
        with child.hold(be_a_job, str(fake), root=root) as process:
            folder = json.loads(process.stdout.readline())
            ring = Path(folder, "system.gpu.ring")
            child.wait_until(ring.exists, 60, "GPU row")
            [collector] = child.find_collectors(root)
            [nvml] = find_children(collector)
            time.sleep(5)  # its start, and the first reading of everybody's memory, are over
            begin_s, before = time.monotonic(), [read_cpu_s(pid) for pid in (collector, nvml)]
            time.sleep(SECONDS)
            used = [read_cpu_s(pid) - cpu for pid, cpu in zip((collector, nvml), before)]  # noqa: B905
            passed_s = time.monotonic() - begin_s
    return 100 * sum(used) / passed_s, 100 * used[1] / passed_s


def be_a_job(fake: str) -> None:
    """A recorded job with a crowd of processes below it."""
    os.environ["SONDE_NVML"] = fake
    import sonde

    with crowd():
        print(json.dumps(sonde.start()), flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def crowd():
    """Many processes below this one, all of which wake up now and then."""
    environment = {**os.environ, "SONDE": "0"}
    keeper = subprocess.Popen(
        [sys.executable, "-c", _KEEP, str(PROCESSES)],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield json.loads(keeper.stdout.readline())
    finally:
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()


class Nobody:
    """A session that keeps nothing: a reading is measured without the writing."""

    folder, host_every_s = "", 1.0

    def __init__(self, pid: int) -> None:
        self.host_pid, self.count = pid, 0

    def write(self, row: type, values: tuple[object, ...], schema: str = "") -> None:
        self.count += row.__name__ == "Process"


def read_sensors(pids: list[int]) -> float:
    """Return the milliseconds of CPU that one reading takes, once all is known."""
    from sonde.collector.sensor_schedule import Sensors

    sensors, nobody = Sensors(), Nobody(os.getppid())
    for now_s in range(12):  # a second apart for it, at once for us
        if now_s == 2:
            before, count = time.process_time(), nobody.count
        sensors.measure([nobody], float(now_s), lambda _folder: contextlib.nullcontext())
    assert nobody.count - count >= 10 * len(pids)
    sensors.close()
    return (time.process_time() - before) / 10 * 1e3


def read_with_psutil(pids: list[int]) -> float:
    """The same with psutil."""
    import psutil

    known = [psutil.Process(pid) for pid in (os.getppid(), *pids)]
    for number in range(12):
        if number == 2:
            before = time.process_time()
        psutil.cpu_times()
        psutil.cpu_times(percpu=True)
        psutil.cpu_stats()
        psutil.getloadavg()
        psutil.virtual_memory()
        psutil.swap_memory()
        psutil.disk_io_counters(perdisk=True)
        psutil.net_io_counters(pernic=True)
        psutil.Process(os.getppid()).children(recursive=True)
        for process in known:
            with process.oneshot():
                process.name(), process.status(), process.ppid(), process.cpu_times()
                process.memory_info(), process.num_threads(), process.num_ctx_switches()
                process.io_counters(), process.num_fds()
    return (time.process_time() - before) / 10 * 1e3


def find_children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def read_cpu_s(pid: int) -> float:
    """CPU time of a process, by its own clock."""
    return time.clock_gettime((~pid << 3) | 2)
