"""A new memory layout for every process that is measured.

Where the stack, the heap and the dicts of a process happen to lie makes a bare Python loop faster
or slower by several per cent, which is more than most of what these benchmarks look for. So every
process gets a layout drawn by lot, and medians are taken over layouts. `child.py` sees to it: no
benchmark has to ask."""

from __future__ import annotations

import os
import random

NAME = "BENCH_LAYOUT"
_kept: list[object] = []  # for as long as the process lives


def draw() -> dict[str, str]:
    """Return variables that move the stack of a new process, order its sets and seed `shake`."""
    seed = random.getrandbits(32)
    return {NAME: f"{seed} {'x' * (seed % 4096)}", "PYTHONHASHSEED": str(seed)}


def shake() -> None:
    """Allocate by lot and keep half of it, so that what comes next lies in other places each time.

    Call it before anything else is imported. Without the variables of `draw` it does nothing: where
    instructions are counted, each run must be like the one before."""
    if NAME not in os.environ:
        return
    chance = random.Random(int(os.environ[NAME].split()[0]))
    # Small ones are pymalloc's, larger ones the C library's, the largest are mapped one by one.
    for most, size in ((20_000, 512), (4_000, 8_192), (64, 2**18)):
        blocks = [bytearray(chance.randrange(1, size)) for _ in range(chance.randrange(most))]
        _kept.extend(block for block in blocks if chance.random() < 0.5)
