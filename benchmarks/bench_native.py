"""How long a busy thread is stopped while its native frames are looked at.

The thread only computes. So the time in which it neither had a processor nor waited for one, as the
scheduler counts both, is the time in which it was stopped, however busy the machine is."""

from __future__ import annotations

import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import child
from result import Result, interleave

LOOKS = 3  # of each round
OFF_S = 0.3  # as long as a look takes, about
TOOLS = {
    "py-spy dump --native": ["py-spy", "dump", "--native", "--pid"],
    "pystack remote --native": ["pystack", "remote", "--native"],
}


def measure(rounds: int) -> list[Result]:
    """Milliseconds for the main thread of a program with PyTorch, where that is installed."""
    found: dict[str, list[float]] = {}
    for _ in range(max(2, rounds)):
        with child.open_root() as root, child.hold(spin, root=root) as job:
            assert job.stdout.readline() == "ready\n"
            for name, values in interleave(LOOKS, list_looks(job)).items():
                found.setdefault(name, []).extend(values)
    own = found.pop("sonde stacks --native")
    return [
        Result(
            "sonde stacks --native: how long a busy thread is stopped",
            "ms",
            own,
            peers=found,
            note="`off` is the same with nobody looking: what the clocks are apart",
        )
    ]


def list_looks(job: subprocess.Popen) -> dict[str, Callable[[], float]]:
    own = [sys.executable, "-m", "sonde", "stacks", "--native"]
    looks = {"sonde stacks --native": own, "off": []}
    for name, (tool, *words) in TOOLS.items():
        path = shutil.which(tool)
        if path is not None:
            looks[name] = [path, *words]
    return {name: lambda words=words: stop_during(job, words) for name, words in looks.items()}


def stop_during(job: subprocess.Popen, words: list[str]) -> float:
    """How long the program was stopped, in ms, while somebody looked at it."""
    before = read_stopped_ms(job.pid)
    if words:
        subprocess.run([*words, str(job.pid)], stdout=subprocess.DEVNULL, check=True)
    else:
        time.sleep(OFF_S)
    return read_stopped_ms(job.pid) - before


def read_stopped_ms(pid: int) -> float:
    """The time, from any moment on, in which the main thread neither ran nor waited to run."""
    ran_ns, waited_ns, _times = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return (time.perf_counter_ns() - int(ran_ns) - int(waited_ns)) / 1e6


def spin() -> None:
    """Compute until the input ends."""
    with suppress(ImportError):
        import torch  # noqa: F401
    print("ready", flush=True)
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN)
    while not poll.poll(0):
        sum(range(20_000))
