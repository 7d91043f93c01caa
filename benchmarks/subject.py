"""Programs whose stacks are sampled: each does what its stdin says, line by line."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench_idle import work

THREADS, DEPTH = 8, 60


def serve() -> None:
    """Say the pid; then a line `["function", argument, …]` in, its answer as a line out."""
    print(json.dumps(os.getpid()), flush=True)
    for line in sys.stdin:
        name, *args = json.loads(line)
        print(json.dumps(ACTS[name](*args)), flush=True)
    os._exit(0)  # threads may be running


# ---- known shares ----------------------------------------------------------------------------


def step(x: int) -> int:
    return (x + 7) & 0xFFFF


# The four do the same, so that a tracer's cost per call does not move the shares.
_BODY = """
def share_{share}(units):
    x = 1
    for _ in range(units):
        x = step(x)
        for i in range(50):
            x = (x * 31 + i) & 0xffff
"""
SHARES = (50, 30, 15, 5)
for _share in SHARES:
    exec(compile(_BODY.format(share=_share), f"share_{_share}.py", "exec"))


def run_shares(seconds: float) -> dict[str, float]:
    """Work that long; the part of the time that each function really had."""
    spent = dict.fromkeys(SHARES, 0.0)
    end, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        turn += 1
        for share in SHARES:
            function = globals()[f"share_{share}"]
            begin = time.perf_counter()
            function(share * (8 + turn % 5))
            spent[share] += time.perf_counter() - begin
    return {f"share_{share}": spent[share] / sum(spent.values()) for share in SHARES}


# ---- many threads, deep stacks ---------------------------------------------------------------


def spin() -> None:
    """Mostly working, as far as the GIL lets it, with a wait in every turn."""
    while True:
        for i in range(20000):
            _x = (i * 31) & 0xFFFF
        time.sleep(0.001)


def wait() -> None:
    threading.Event().wait()


def descend(levels: int, leaf: Callable[[], None]) -> None:
    if levels:
        descend(levels - 1, leaf)
    else:
        leaf()


def spread(leaf: str, threads: int, depth: int) -> int:
    """Start threads that stay; each is `depth` frames deep."""
    started = [
        # Thread's own are _bootstrap, _bootstrap_inner and run.
        threading.Thread(target=descend, args=(depth - 5, globals()[leaf]), daemon=True)
        for _ in range(threads)
    ]
    for thread in started:
        thread.start()
    return len(started)


# ---- what the others are compared with ---------------------------------------------------------


def time_work(units: int, times: int) -> list[tuple[float, float]]:
    """Seconds of the clock and of this thread's CPU, for the same work several times."""
    found = []
    for _ in range(times):
        begin, cpu = time.perf_counter(), time.thread_time()
        work(units)
        found.append((time.perf_counter() - begin, time.thread_time() - cpu))
    return found


def time_native(units: int, times: int) -> list[tuple[float, float]]:
    """The same for work that C does for Python, and in which C calls Python again."""
    found = []
    rows = [{"id": number, "name": str(number), "tags": [number] * 3} for number in range(200)]
    for _ in range(times):
        begin, cpu = time.perf_counter(), time.thread_time()
        for _ in range(units):
            text = json.dumps(rows)
            re.sub("[0-9]+", lambda found: found[0], text)
            sorted(json.loads(text), key=lambda row: -row["id"])
        found.append((time.perf_counter() - begin, time.thread_time() - cpu))
    return found


def start_sonde(every: str, settings: dict[str, str]) -> str:
    import sonde

    return sonde.start(stack_every=every, follow=False, **settings)


def stop_sonde() -> None:
    import sonde

    sonde.stop()


def read_rss_mb() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Rss:")) * 1024 / 1e6


def pause(seconds: float) -> None:
    time.sleep(seconds)


# ---- profilers that run inside ---------------------------------------------------------------


_inside: dict[str, object] = {}


def start_inside(name: str) -> None:
    if name == "cProfile":
        import cProfile

        _inside[name] = cProfile.Profile()
        _inside[name].enable()
    elif name == "yappi":
        import yappi

        yappi.set_clock_type("wall")
        yappi.start()
    else:
        import pyinstrument

        _inside[name] = pyinstrument.Profiler(interval=0.001)
        _inside[name].start()


def stop_inside(name: str) -> dict[str, float]:
    """Seconds in each function and what it called, as far as they were asked for."""
    if name == "cProfile":
        _inside[name].disable()
        import pstats

        stats = pstats.Stats(_inside.pop(name)).stats
        return {key[2]: value[3] for key, value in stats.items() if key[2].startswith("share_")}
    if name == "yappi":
        import yappi

        yappi.stop()
        found = {one.name: one.ttot for one in yappi.get_func_stats()}
        yappi.clear_stats()
        return {key: value for key, value in found.items() if key.startswith("share_")}
    profiler = _inside.pop(name)
    profiler.stop()
    found: dict[str, float] = {}
    _add_times(profiler.last_session.root_frame(), found)
    return found


def _add_times(frame: object, found: dict[str, float]) -> None:
    if frame is None:
        return
    if frame.function.startswith("share_"):
        found[frame.function] = found.get(frame.function, 0.0) + frame.time
    for child in frame.children:
        _add_times(child, found)


ACTS = {
    function.__name__: function
    for function in (
        run_shares,
        spread,
        time_work,
        time_native,
        start_sonde,
        stop_sonde,
        read_rss_mb,
        pause,
        start_inside,
        stop_inside,
    )
}
