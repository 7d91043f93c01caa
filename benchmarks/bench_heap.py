"""What sampling the heap costs a program that allocates all the time, in time and in memory."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import child
from result import Result, find_noise

KINDS = ("objects", "json", "buffers")
TURNS = 8
SETTLE_S = 0.7  # after which samples lie as far apart as they will: they begin with 2 ms to spend


def measure(rounds: int) -> list[Result]:
    """CPU time of the same work, on and off in turn within a process; a value is a process."""
    results = []
    with child.open_root() as root:
        for kind in KINDS:
            found = [child.call(compare, kind, root=root) for _ in range(max(3, rounds) * 2)]
            own, slow, same = (
                [one[name] for one in found] for name in ("heap", "tracemalloc", "off")
            )
            results += [
                Result(
                    f"sampling the heap slows a program that makes {kind} by", "%", own, 1.0,
                    peers={"off, twice": same, "tracemalloc": slow}, noise=find_noise(own),
                ),
                Result("memory that this takes", "MiB", [one["mib"] for one in found], 5.0),
            ]  # fmt: skip
    return results


def compare(kind: str) -> dict[str, float]:
    """Return by how many percent each tool lengthens the work, and what ours takes in memory."""
    import tracemalloc

    import sonde
    from sonde.job.source_switch import switch_source

    assert sonde.start(collector="off")
    tools = {
        "off": (lambda: None, lambda: None),
        "heap": (lambda: switch_source("heap", True), lambda: switch_source("heap", False)),
        "tracemalloc": (tracemalloc.start, tracemalloc.stop),
    }
    work = {"objects": make_objects, "json": make_json, "buffers": make_buffers}[kind]
    work(10)
    ratios: dict[str, list[float]] = {name: [] for name in tools}
    mib = 0.0
    for turn in range(TURNS):
        for name, (start, stop) in tools.items():
            if name == "tracemalloc" and turn % 4:
                continue  # it takes ten times as long, and is not what is looked for
            plain, before = time_work(work), read_rss()
            start()
            settle(work, name)
            ratios[name].append(time_work(work) / plain)
            mib = max(mib, read_rss() - before) if name == "heap" else mib
            stop()
    return {name: 100 * (median(of) - 1) for name, of in ratios.items()} | {"mib": mib}


def settle(work: Callable[[int], None], tool: str) -> None:
    """Let the samples of a program that allocates for long become as rare as they will. The same
    with nothing switched on: otherwise the two would differ by what was done before."""
    end = time.process_time() + (SETTLE_S if tool != "tracemalloc" else 0.0)
    while time.process_time() < end:
        work(1)


def time_work(work: Callable[[int], None]) -> float:
    begin = time.process_time()
    work(20)
    return time.process_time() - begin


def read_rss() -> float:
    """Return the memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


class Item:
    def __init__(self, number: int) -> None:
        self.name, self.tags = f"item {number}", [number]


def make_objects(times: int) -> None:
    for _ in range(times):
        [Item(number) for number in range(5_000)]


def make_json(times: int) -> None:
    rows = [{"id": number, "name": str(number), "tags": [number] * 3} for number in range(1_000)]
    for _ in range(times):
        json.loads(json.dumps(rows))


def make_buffers(times: int) -> None:
    for _ in range(times * 500):
        kept = [bytes(600 + 40 * at) for at in range(20)]
        del kept
