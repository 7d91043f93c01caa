"""Does recording PyTorch slow a job down? Seen from outside, by the steps' own times.

python benchmarks/witness_cost.py [--device cuda] [--seconds 300] [--raw FILE]

A machine's speed drifts by more than a percent within seconds, so nothing is compared over longer
than that: the steps run in groups of four short blocks, two as they are compared and two as they
are compared with, in the orders ABBA and BAAB by turns. Two controls are interleaved with the rest:
the same thing on both sides must come out at 0, and a wait of 1 % in each step at 1.

Blocks are compared by means, because the budget puts all of its cost into a few steps; a step that
took 30 % longer or shorter than the middle of its group was disturbed by something else, and counts
as 30 %. How many those are on each side is told, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path
from statistics import fmean, median
from unittest.mock import patch

import child
import torch
import transformer
from bench_torch import SETTLE, WARM, record

import sonde

BLOCK = 16  # timed steps; one more comes before, in which things change
FAR = 0.3
KNOWN = 0.01
RECORDED = "default budget, beside a pause"
SAME = "a pause, beside itself (0)"
WAIT = f"a wait of {KNOWN:.0%} in each step, in a pause ({100 * KNOWN:.0f})"
EVERYTHING = "everything of every step, beside a pause"
PAUSED = "a pause, beside no recording"
Block = list[float]  # seconds of each step
SQL = "SELECT plan, overhead_pct, low_pct, high_pct FROM sonde.overhead ORDER BY t_ns"


@dataclass(frozen=True)
class Group:
    """Four blocks: two with what is looked at, two without."""

    kind: str
    steps: Block
    beside: Block

    def compare(self) -> tuple[float, int, int]:
        """Slowdown in percent, and how many steps of each side were disturbed."""
        middle = median(self.steps + self.beside)
        ours, theirs = ([t / middle - 1 for t in side] for side in (self.steps, self.beside))
        cut = [sum(abs(one) > FAR for one in side) for side in (ours, theirs)]
        means = [fmean(max(-FAR, min(FAR, one)) for one in side) for side in (ours, theirs)]
        return 100 * (means[0] - means[1]), cut[0], cut[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=300, help="default: %(default)s")
    parser.add_argument("--raw", type=Path, help="write the time of every step here, as JSON")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    shape = "CPU" if args.device == "cpu" else "LAUNCH"
    if args.device == "cpu":
        torch.set_num_threads(1)
    with child.open_root() as root, patch.dict("os.environ", SONDE_DIR=root):
        job = Job(getattr(transformer, shape), args.device)
        groups = list(job.watch(args.seconds))
        inside = [say_inside(folder) for folder in job.folders]
    if args.raw:
        args.raw.write_text(json.dumps([vars(group) for group in groups]))
    middle = median(t for group in groups for t in group.beside)
    print(f"torch {torch.__version__} on {args.device}, a step is {1e3 * middle:.2f} ms")
    for kind in (RECORDED, SAME, WAIT, EVERYTHING, PAUSED):
        print(describe(kind, [group for group in groups if group.kind == kind]))
    print(*inside, sep="\n")
    return 0


class Job:
    """A model that waits for launches, and what is done between its steps."""

    def __init__(self, shape: transformer.Shape, device: str) -> None:
        self.device = device
        self.folders: list[str] = []
        _model, self._step = transformer.make_step(shape, device)
        for _ in range(40):
            self._step()
        gc.collect()
        gc.freeze()
        self.wait_s = KNOWN * median(self.time_block(self._step))

    def watch(self, seconds: float) -> Iterator[Group]:
        """Groups of all kinds, for so long in all."""
        kinds = cycle((RECORDED, SAME, RECORDED, WAIT))
        yield from self._alternate(0.65 * seconds, kinds, {})
        yield from self._alternate(0.1 * seconds, cycle((EVERYTHING,)), {"torch.budget_pct": 0})
        yield from self._leave(0.25 * seconds)

    def _alternate(
        self, seconds: float, kinds: Iterator[str], settings: dict[str, object]
    ) -> Iterator[Group]:
        """Groups of blocks within one recording."""
        end = time.monotonic() + seconds
        with record(**settings) as folder:
            self.folders.append(str(folder))
            for _ in range(3 * SETTLE):
                self._step()
            for turn, kind in enumerate(kinds):
                if time.monotonic() > end:
                    break
                yield self._time_group(kind, turn, lambda kind=kind: self._time_inside(kind))

    def _time_inside(self, kind: str) -> Block:
        if kind == WAIT:
            return self.time_block(self._step_and_wait)
        if kind == SAME:
            return self.time_block(self._step)
        sonde.resume()
        try:
            return self.time_block(self._step)
        finally:
            sonde.pause()

    def _leave(self, seconds: float) -> Iterator[Group]:
        """Groups in which a recording begins and pauses, and ends again."""
        end, turn = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            yield self._time_group(PAUSED, turn, self._time_paused)
            turn += 1

    def _time_paused(self) -> Block:
        with record():
            for _ in range(WARM):
                self._step()
            sonde.pause()
            return self.time_block(self._step)

    def _time_group(self, kind: str, turn: int, look: Callable[[], Block]) -> Group:
        sides: dict[str, Block] = {"A": [], "B": []}
        with paused():
            for side in "ABBA" if turn // 4 % 2 else "BAAB":
                sides[side] += look() if side == "A" else self.time_block(self._step)
        return Group(kind, sides["A"], sides["B"])

    def _step_and_wait(self) -> None:
        self._step()
        end = time.perf_counter() + self.wait_s
        while time.perf_counter() < end:
            pass

    def time_block(self, step: Callable[[], object]) -> Block:
        """The time from each end of a step to the next."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        step()
        ends = [time.perf_counter()]
        for _ in range(BLOCK):
            step()
            ends.append(time.perf_counter())
        return [after - before for before, after in pairwise(ends)]


@contextmanager
def paused() -> Iterator[None]:
    """A pause, of whatever is being recorded."""
    sonde.pause()
    try:
        yield
    finally:
        sonde.resume()


def describe(kind: str, groups: list[Group]) -> str:
    if len(groups) < 5:
        return f"{kind:<48} too few groups: {len(groups)}"
    found = [group.compare() for group in groups]
    costs = [cost for cost, *_ in found]
    low, high = find_interval(costs)
    steps = 2 * BLOCK * len(groups)
    cut, beside = (100 * sum(column) / steps for column in list(zip(*found, strict=True))[1:])
    return (
        f"{kind:<48} {fmean(costs):+6.2f} %  (95 %: {low:+.2f} … {high:+.2f}), "
        f"{len(groups)} groups; disturbed {cut:.1f} and {beside:.1f} % of steps"
    )


def say_inside(folder: str) -> str:
    """What the job itself found, and what it recorded for that."""
    rows = sonde.open(folder).query(SQL).to_pylist()
    if not rows or rows[-1]["overhead_pct"] is None:
        return f"inside the job: not measured ({rows[-1:]})"
    found = "{overhead_pct:+.2f} %  (95 %: {low_pct:+.2f} … {high_pct:+.2f}); {plan}"
    return "inside the job: " + found.format(**rows[-1])


def find_interval(costs: list[float], turns: int = 2000) -> tuple[float, float]:
    """Where the mean lies, 19 times in 20: of groups drawn again and again from the groups."""
    chance = random.Random(0)
    means = sorted(fmean(chance.choices(costs, k=len(costs))) for _ in range(turns))
    return means[turns // 40], means[-turns // 40]


if __name__ == "__main__":
    sys.exit(main())
