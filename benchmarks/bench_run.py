"""What a profiling run costs: to begin and end one, and the work inside it."""

from __future__ import annotations

import cProfile
import time

import child
from result import Result, find_noise, interleave

import sonde

_GOAL_PCT = 2.0  # slowdown of the work at the default rate
BLOCK_S = 0.05


def inner(n: int) -> int:
    total = 0
    for i in range(n):
        total += i * i
    return total


def work(n: int) -> int:
    return sum(inner(20) for _ in range(n))


def measure(rounds: int) -> list[Result]:
    with child.open_root() as root:
        processes = [child.call(time_all, 6, root=root) for _ in range(max(2, rounds))]
    first, ends, pairs, traced = (
        [value for one in some for value in one] for some in zip(*processes, strict=True)
    )
    noise = find_noise(pairs)
    return [
        Result("the first run of a process: begin and end", "ms", first,
               note="with the start of the recording"),
        Result("every other one", "ms", ends, peers={"cProfile: enable, disable": traced}),
        Result("work inside a run, at the default 1 ms: slower by", "%", pairs, _GOAL_PCT,
               noise=noise, note=f"{len(pairs)} pairs of 50 ms; ± {noise:.2f} %"),
    ]  # fmt: skip


def time_all(rounds: int) -> tuple[list[float], list[float], list[float], list[float]]:
    first = [time_ends()]
    found = interleave(10, {"ours": time_ends, "theirs": time_cprofile})
    n = 100
    while time_work(n) < BLOCK_S:
        n *= 2
    pairs = []
    for at in range(rounds):
        # By turns, and every other pair the other way round.
        turns = (False, True) if at % 2 else (True, False)
        took = {profiled: time_inside(n) if profiled else time_work(n) for profiled in turns}
        pairs.append(100 * (took[True] / took[False] - 1))
    sonde.stop()
    return first, found["ours"], pairs, found["theirs"]


def time_ends() -> float:
    begin = time.perf_counter()
    with sonde.profile():
        pass
    return (time.perf_counter() - begin) * 1e3


def time_cprofile() -> float:
    begin = time.perf_counter()
    profile = cProfile.Profile()
    profile.enable()
    profile.disable()
    return (time.perf_counter() - begin) * 1e3


def time_work(n: int) -> float:
    begin = time.perf_counter()
    work(n)
    return time.perf_counter() - begin


def time_inside(n: int) -> float:
    with sonde.profile():
        return time_work(n)
