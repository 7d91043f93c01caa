"""Does recording PyTorch slow a job down? Seen from outside, by the steps' own times.

python benchmarks/witness_cost.py [--device cuda] [--seconds 300] [--raw FILE]

The speed of a machine drifts by ten percent within a second, so steps are compared with their
neighbours alone: a few that are recorded as they always are, a few with nothing of sonde's at work,
in turns and in an order of chance. Nothing at work: the hooks of steps and nodes are taken out, and
the recording pauses. What stays in the way then, calls of modules that pass through C, is timed by
itself. Two controls are interleaved with the rest: nothing at work on both sides must come out at
0, and a wait of 1 % in each step at 1.

Told are the time of all recorded blocks over the time of all blocks beside them, which has every
step in it (the budget puts its cost into few of them), and the middle of the pairs, which a step
that something else has disturbed does not move.
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
from dataclasses import dataclass
from itertools import cycle, pairwise
from math import expm1, log
from pathlib import Path
from statistics import median

import child
import torch
import transformer
from bench_torch import SETTLE, record
from torch.optim import optimizer

import sonde
from sonde import _core
from sonde.job.torch.steps import OPTIMIZER, steps

PROCESSES = 5  # each with a memory layout of its own
BLOCK = 4  # timed steps; one more comes before, in which things change
KNOWN = 0.01
CALLS = 20_000
RECORDED, EVERYTHING = "default budget", "everything of every step"
SAME = "control: nothing, beside itself"
WAIT = f"control: a wait of {KNOWN:.0%} in each step"
Blocks = list[tuple[float, float]]  # seconds: recorded, and beside it
SQL = "SELECT plan, overhead_pct, low_pct, high_pct, direct_pct FROM sonde.overhead ORDER BY t_ns"


@dataclass(frozen=True)
class Pair:
    """Seconds of steps, with what is looked at and without."""

    kind: str
    steps: list[float]
    beside: list[float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=300, help="default: %(default)s")
    parser.add_argument("--raw", type=Path, help="write the time of every step here, as JSON")
    args = parser.parse_args()
    with child.open_root() as root:
        found = [
            child.call(watch, args.device, args.seconds / PROCESSES, root=root)
            for _ in range(PROCESSES)
        ]
    pairs = [Pair(*pair) for one in found for pair in one["pairs"]]
    if args.raw:
        args.raw.write_text(json.dumps([vars(pair) for pair in pairs]))
    step_s, wait_s, passing_ns = (
        median(one[key] for one in found) for key in ("step_s", "wait_s", "passing_ns")
    )
    print(f"torch {torch.__version__} on {args.device}, a step is {1e3 * step_s:.2f} ms")
    for kind in (RECORDED, EVERYTHING, SAME, WAIT):
        print(describe(kind, [pair for pair in pairs if pair.kind == kind]))
    print(f"{'  which is, of these steps,':<36} {100 * wait_s / step_s:+6.2f} %")
    modules = found[0]["modules"]
    share = 100 * passing_ns * modules / 1e9 / step_s
    what = f"({modules} times {passing_ns:.0f} ns)"
    print(f"{'beside that: calls that pass through':<36} {share:+6.2f} %  {what}")
    print(*(line for one in found for line in one["inside"]), sep="\n")
    return 0


def watch(device: str, seconds: float) -> dict[str, object]:
    """Watch one job, in a process of its own."""
    warnings.simplefilter("ignore")
    if device == "cpu":
        torch.set_num_threads(1)
    job = Job(device)
    pairs = [
        *job.watch(0.7 * seconds, (RECORDED, SAME, RECORDED, WAIT, RECORDED)),
        *job.watch(0.3 * seconds, (EVERYTHING,), **{"torch.budget_pct": 0}),
    ]
    return {
        "pairs": [list(vars(pair).values()) for pair in pairs],
        "inside": [say_inside(folder) for folder in job.folders],
        "modules": job.modules,
        "step_s": median(t for pair in pairs for t in pair.beside),
        "wait_s": job.wait_s,
        "passing_ns": job.passing_ns,
    }


class Job:
    """A model that waits for launches, and what is done between its steps."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.folders: list[str] = []
        self.passing_ns = 0.0
        shape = transformer.CPU if device == "cpu" else transformer.LAUNCH
        model, self._step = transformer.make_step(shape, device)
        self.modules = sum(1 for _ in model.modules())
        for _ in range(40):
            self._step()
        gc.collect()
        gc.freeze()
        self.wait_s = KNOWN * median(self._time(self._step, 8))
        self._chance = random.Random(0)

    def watch(self, seconds: float, kinds: tuple[str, ...], **settings: object) -> Iterator[Pair]:
        """Pairs of blocks within one recording, for so long; for a third of it, if it takes that
        long, the budget finds its level."""
        begin = time.monotonic()
        end, settled = begin + seconds, begin + seconds / 3
        with record(**settings) as folder:
            self.folders.append(str(folder))
            for _ in range(8 * SETTLE):
                if time.monotonic() < settled:
                    self._step()
            hooks = Hooks()
            for kind in cycle(kinds):
                if time.monotonic() > end:
                    break
                yield self._time_pair(kind, hooks)
            hooks.take_out()
            self.passing_ns = time_passing()
            hooks.put_back()

    def _time_pair(self, kind: str, hooks: Hooks) -> Pair:
        sides: dict[bool, list[float]] = {}
        for ours in self._chance.choice(((True, False), (False, True))):
            recorded = ours and kind in (RECORDED, EVERYTHING)
            hooks.put_back() if recorded else hooks.take_out()
            step = self._step_and_wait if ours and kind == WAIT else self._step
            sides[ours] = self._time(step, BLOCK)
        return Pair(kind, sides[True], sides[False])

    def _step_and_wait(self) -> None:
        self._step()
        end = time.perf_counter() + self.wait_s
        while time.perf_counter() < end:
            pass

    def _time(self, step: Callable[[], object], count: int) -> list[float]:
        """The time from each end of a step to the next."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        step()
        ends = [time.perf_counter()]
        for _ in range(count):
            step()
            ends.append(time.perf_counter())
        return [after - before for before, after in pairwise(ends)]


class Hooks:
    """What sonde has put into torch, taken out and put back within microseconds.

    Not the place of nn.Module.__call__: Python would have to learn all classes anew."""

    def __init__(self) -> None:
        self._places = (
            optimizer._global_optimizer_pre_hooks,
            optimizer._global_optimizer_post_hooks,
        )
        self._kept = [dict(place) for place in self._places]
        (self._step_end,) = (one for one in steps._listeners if isinstance(one, _core.TorchStepEnd))
        self._are_in = True

    def take_out(self) -> None:
        for place in self._places:
            place.clear()
        _core.torch_ignore()
        sonde.pause()
        self._are_in = False

    def put_back(self) -> None:
        if self._are_in:
            return
        sonde.resume()
        # The time since they were taken out is no step of the recording's.
        steps.unsubscribe(self._step_end)
        steps.subscribe(ignore)
        steps.end(OPTIMIZER)
        steps.unsubscribe(ignore)
        steps.subscribe(self._step_end)
        self._step_end.begin()
        for place, kept in zip(self._places, self._kept, strict=True):
            place.update(kept)
        self._are_in = True


def ignore(_step: object) -> None:
    pass


class Many(torch.nn.Module):
    """A module that calls another one, which does nothing, again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Identity()

    def forward(self) -> float:
        inner = self.inner
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            inner(None)
        return (time.perf_counter_ns() - begin) / CALLS


def time_passing() -> float:
    """Nanoseconds that a call of a module takes longer because sonde is there, and does nothing."""
    place, many, found = torch.nn.Module, Many(), []
    ours, original = vars(place)["__call__"], place.__call__
    for _ in range(25):
        took = []
        for one in (original, ours):
            place.__call__ = one
            many()  # Python learns its classes anew
            took.append(many())
        found.append(took[1] - took[0])
    return median(found)


def describe(kind: str, pairs: list[Pair]) -> str:
    if len(pairs) < 5:
        return f"{kind:<36} too few pairs: {len(pairs)}"
    blocks = [(sum(pair.steps), sum(pair.beside)) for pair in pairs]
    whole, middle = (
        "{:+6.2f} %  ({:+.2f} … {:+.2f})".format(find(blocks), *find_interval(find, blocks))
        for find in (compare_sums, compare_middle)
    )
    return f"{kind:<36} {whole}, {len(pairs)} pairs; in the middle {middle}"


def compare_sums(blocks: Blocks) -> float:
    """Slowdown in percent, of all there is."""
    return 100 * (sum(ours for ours, _ in blocks) / sum(beside for _, beside in blocks) - 1)


def compare_middle(blocks: Blocks) -> float:
    """The same, of the pair in the middle. By logarithms: twice and half are equally far off."""
    return 100 * expm1(median(log(ours / beside) for ours, beside in blocks))


def say_inside(folder: str) -> str:
    """What the job itself found, and what it recorded for that."""
    rows = sonde.open(folder).query(SQL).to_pylist()
    if not rows or rows[-1]["overhead_pct"] is None:
        return f"inside the job: not measured ({rows[-1:]})"
    found = "{overhead_pct:+.2f} %  (95 %: {low_pct:+.2f} … {high_pct:+.2f}), "
    found += "of which it sees {direct_pct:.2f} itself; {plan}"
    return "inside the job: " + found.format(**rows[-1])


def find_interval(
    find: Callable[[Blocks], float], blocks: Blocks, turns: int = 400
) -> tuple[float, float]:
    """Where it lies, 19 times in 20: of pairs drawn again and again from the pairs."""
    chance = random.Random(0)
    found = sorted(find(chance.choices(blocks, k=len(blocks))) for _ in range(turns))
    return found[turns // 40], found[-turns // 40]


if __name__ == "__main__":
    sys.exit(main())
