"""What sampling costs a program, with the sampler on and off by turns inside one process."""

from __future__ import annotations

import subprocess
import sys

from result import Result, find_noise

RATES = ((100, 0.3), (1_000, 2.0), (10_000, 15.0))
BLOCKS = 120

PROGRAM = """
import sys, time, sonde
def inner(n):
    s = 0
    for i in range(n): s += i * i
    return s
def outer(n):
    return sum(inner(20) for _ in range(n))
sonde.start(collector=False, stack_every=f"{1 / float(sys.argv[1])}", source_gc=False)
sonde.pause()
n = 100
while True:
    begin = time.perf_counter(); outer(n)
    if time.perf_counter() - begin > 0.04: break
    n *= 2
for block in range(int(sys.argv[2])):
    # Off and on by turns, and every other pair the other way round.
    for on in ((0, 1) if block % 2 else (1, 0)):
        (sonde.resume if on else sonde.pause)()
        begin = time.perf_counter(); outer(n)
        print(on, time.perf_counter() - begin)
"""


def time_pairs(rate: int) -> list[float]:
    """Slowdown in percent, of each pair of neighbours."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(rate), str(BLOCKS)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [line.split() for line in done.stdout.splitlines()]
    times = [(int(on), float(took)) for on, took in rows]
    pairs = zip(times[::2], times[1::2], strict=True)
    return [100 * (dict(pair)[1] / dict(pair)[0] - 1) for pair in pairs]


def measure(rounds: int) -> list[Result]:
    results = []
    for rate, goal in RATES:
        samples = [value for _ in range(max(1, rounds // 2)) for value in time_pairs(rate)]
        noise = find_noise(samples)
        note = f"{len(samples)} pairs of blocks of 50 ms; ± {noise:.2f} %"
        results.append(
            Result(f"sampled at {rate:,} Hz, on and off by turns: slower by", "%", samples, goal,
                   noise=noise, note=note)
        )  # fmt: skip
    return results
