"""What a fork of a recorded program takes by the clock, beside two threads that only sleep."""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import time
from pathlib import Path
from statistics import median

import child
from result import Result, find_noise

SIZES = {0: 300, 64: 300, 512: 60}  # MB of memory that the program has written: forks
PAGE = 4096


def measure(rounds: int) -> list[Result]:
    """Per cent added to fork and wait: recorded, and by the least that any recorder would have, a
    thread in the program and one in each child."""
    with child.open_root() as root:
        threads = build_threads(root)
        kinds = {"bare": {"SONDE": "0"}, "recorded": {"SONDE": "1"}}
        if threads:
            kinds["two threads"] = {"SONDE": "0", "LD_PRELOAD": threads}
        found: dict[tuple[int, str], list[float]] = {}
        for _ in range(2 * rounds):
            for size in SIZES:
                for kind, env in kinds.items():
                    text = child.run(child.name_call(take_time, size), root, **env)
                    found.setdefault((size, kind), []).append(float(text))
    return [compare(size, found) for size in SIZES]


def compare(size: int, found: dict[tuple[int, str], list[float]]) -> Result:
    """Round by round, beside the bare program."""
    bare, recorded = found[size, "bare"], found[size, "recorded"]
    threads = found.get((size, "two threads"), [])
    more = add_up(recorded, bare)
    return Result(
        f"fork and wait by the clock, in a job of {size} MB: added",
        "%",
        more,
        10,
        peers={"two threads that sleep": add_up(threads, bare)} if threads else {},
        noise=find_noise(more),
        note=f"{median(bare):.2f} ms bare, {median(recorded):.2f} ms recorded",
    )


def add_up(ours: list[float], bare: list[float]) -> list[float]:
    """How many per cent more, pair by pair."""
    return [100 * (one / plain - 1) for one, plain in zip(ours, bare, strict=True)]


def build_threads(root: str) -> str | None:
    """The library with the two threads; None without a compiler."""
    path = str(Path(root) / "two_threads.so")
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    source = str(child.HERE / "two_threads.c")
    try:
        subprocess.run(
            [*compiler, "-O2", "-shared", "-fPIC", "-pthread", "-o", path, source], check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return path


def take_time(size: int) -> float:
    """Milliseconds of the median fork; called in a fresh Python."""
    kept = bytearray(size << 20)
    for at in range(0, len(kept), PAGE):
        kept[at] = 1
    time.sleep(0.5)  # the recording has begun
    spans = []
    for _ in range(SIZES[size]):
        begin = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        spans.append(time.perf_counter() - begin)
    return median(spans) * 1e3
