"""What sampling costs a program, with the sampler on and off by turns inside one process."""

from __future__ import annotations

import time
from statistics import median

import child
from result import Result, find_noise

RATES = ((100, 0.3), (1_000, 2.0), (10_000, 15.0))
PROCESSES, PAIRS = 6, 6  # processes a round, each with its own memory layout; pairs in each
BLOCK_S = 0.04


def measure(rounds: int) -> list[Result]:
    """Per cent more time while sampled: the median pair of each process."""
    results = []
    for rate, goal in RATES:
        with child.open_root() as root:
            samples = [
                child.call(time_pairs, rate, root=root) for _ in range(PROCESSES * max(1, rounds))
            ]
        noise = find_noise(samples)
        note = f"{len(samples)} memory layouts, {PAIRS} pairs of blocks in each; ± {noise:.2f} %"
        results.append(
            Result(f"sampled at {rate:,} Hz, on and off by turns: slower by", "%", samples, goal,
                   noise=noise, note=note)
        )  # fmt: skip
    return results


def inner(n: int) -> int:
    total = 0
    for i in range(n):
        total += i * i
    return total


def outer(n: int) -> int:
    return sum(inner(20) for _ in range(n))


def time_outer(n: int) -> float:
    begin = time.perf_counter()
    outer(n)
    return time.perf_counter() - begin


def time_pairs(rate: int) -> float:
    """Slowdown in per cent, in a process of its own; the pair in the middle."""
    import sonde

    assert sonde.start(collector=False, stack_every=f"{1 / rate}", source_gc=False)
    sonde.pause()
    n = 100
    while time_outer(n) < BLOCK_S:
        n *= 2
    found = []
    for pair in range(PAIRS):
        took = {}
        # Every other pair the other way round: what drifts favours neither.
        for on in (False, True) if pair % 2 else (True, False):
            (sonde.resume if on else sonde.pause)()
            took[on] = time_outer(n)
        found.append(100 * (took[True] / took[False] - 1))
    return median(found)
