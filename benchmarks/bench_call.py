"""What the `call` source costs a program, beside cProfile: loops of calls."""

from __future__ import annotations

import cProfile
import time
from collections.abc import Callable
from statistics import median

import child
from result import Result, interleave

import sonde

_GOAL = 60.0  # per cent of cProfile's overhead


class Account:
    def __init__(self) -> None:
        self.sum = 0

    def get(self) -> int:
        return self.sum

    def put(self, value: int) -> None:
        self.sum = value

    def add(self, value: int) -> None:
        self.put(self.get() + value)


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def call_functions() -> None:
    fib(20)


def call_methods() -> None:
    account = Account()
    for i in range(6000):
        account.add(i & 7)


def call_builtins() -> None:
    items: list[int] = []
    add = items.append
    for i in range(10_000):
        add(len("abc"))
        abs(i)
        "abc".upper()


WORK = {
    "pure Python calls (fib)": call_functions,
    "methods": call_methods,
    "builtins": call_builtins,
}


def measure(rounds: int) -> list[Result]:
    """Slowdown over the bare program, sonde's and cProfile's, by turns in a process a round."""
    found: dict[str, list[list[list[float]]]] = {name: [] for name in WORK}
    for _ in range(rounds):
        with child.open_root() as root:
            for name, times in child.call(time_all, 8, root=root).items():
                found[name].append(times)
    results = []
    for name, processes in found.items():
        base = median(median(bare) for bare, _ours, _theirs in processes)
        own, peer = (
            [100 * (median(times[at]) / median(times[0]) - 1) for times in processes]
            for at in (1, 2)
        )
        share = 100 * median(own) / median(peer)
        results.append(
            Result(
                f"exact calls: {name}",
                "% of cProfile's overhead",
                [share],
                _GOAL,
                note=f"bare {base * 1e3:.1f} ms; sonde +{median(own):.0f} %, "
                f"cProfile +{median(peer):.0f} %",
            )
        )
    return results


def time_all(rounds: int) -> dict[str, list[list[float]]]:
    """Seconds of each kind of work: bare, with our source, with cProfile."""
    sonde.start(collector="off", source_stack="off")
    found = {}
    for name, work in WORK.items():
        samples = interleave(
            rounds,
            {
                "bare": lambda work=work: time_once(work),
                "sonde": lambda work=work: time_sonde(work),
                "cProfile": lambda work=work: time_cprofile(work),
            },
        )
        found[name] = list(samples.values())
    sonde.stop()
    return found


def time_once(work: Callable[[], None]) -> float:
    work()  # warm: what was just instrumented, or is so no longer, is specialised again
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def time_sonde(work: Callable[[], None]) -> float:
    recorder = sonde.job.recorder.recorder
    recorder._start_source("call")
    try:
        return time_once(work)
    finally:
        recorder._stop_source("call")


def time_cprofile(work: Callable[[], None]) -> float:
    profile = cProfile.Profile()
    profile.enable()
    try:
        return time_once(work)
    finally:
        profile.disable()
