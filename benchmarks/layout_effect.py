"""What memory layout alone does to a bare loop.

python benchmarks/layout_effect.py [--processes 30]"""

from __future__ import annotations

import argparse
import sys
import time

import child
from bench_idle import work
from result import interleave


def time_loop(times: int) -> float:
    """Return the shortest of a few times of the same bare loop, in milliseconds of CPU."""
    work(5)
    found = []
    for _ in range(times):
        begin = time.process_time()
        work(5)
        found.append((time.process_time() - begin) * 1e3)
    return min(found)


def main() -> int:
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
