"""A new memory layout for every process that is measured; and what layout alone does to a loop.

    python benchmarks/layout.py [--processes 30]

Where the stack, the heap and the dicts of a process happen to lie makes a bare Python loop faster
or slower by several per cent, which is more than most of what these benchmarks look for. So every
process gets a layout drawn by lot, and medians are taken over layouts. `child.py` sees to it: no
benchmark has to ask."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time

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


# ---- what it does ------------------------------------------------------------------------------


def time_loop(times: int) -> float:
    """Return the shortest of a few times of the same bare loop, in milliseconds of CPU."""
    from bench_idle import work

    work(5)
    found = []
    for _ in range(times):
        begin = time.process_time()
        work(5)
        found.append((time.process_time() - begin) * 1e3)
    return min(found)


def main() -> int:
    import child
    from result import interleave

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=30, help="default: %(default)s")
    args = parser.parse_args()
    with child.open_root() as root:
        fixed = ["setarch", "-R", *child.name_call(time_loop, 20)]  # no randomisation by the kernel
        found = interleave(
            args.processes,
            {
                "always the same layout": lambda: float(child.run(fixed, root, shaken=False)),
                "a layout drawn by lot": lambda: float(child.call(time_loop, 20, root=root)),
            },
        )
    for name, times in found.items():
        low, *_, high = sorted(times)[len(times) // 20 : len(times) - len(times) // 20]
        print(
            f"{name:25} {low:.2f} to {high:.2f} ms, 9 times in 10: {100 * (high / low - 1):.1f} %"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
