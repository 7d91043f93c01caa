"""Do our numbers agree with torch.profiler's, on the same steps? Per module, host and device.

python benchmarks/witness_torch.py [--device cuda] [--steps 5]

Both look at the same steps. The profiler knows modules by labels around each call. The time of a
node of backward is the module's in whose label the forward operator with the same sequence number
ran; that of a kernel is the module's whose operator or node launched it.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import child
import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity
from transformer import CPU_LARGE, GPU, GPU_LARGE, Shape, make_step

import sonde
from sonde import settings as config
from sonde.job.torch.steps import steps

LABEL, WATCHED = "module ", "watched"
PROBE, N_PROBES = "Identity", 200  # a module that does nothing: what a label itself takes
BACKWARD = 1  # torch's number for the scope of a node of backward
LARGE = 0.01  # modules below this share of a step are compared only within sums
Times = dict[str, float]  # seconds by module
Line = tuple[str, str, str, bool]  # what, found, asked, met

SQL = """
SELECT module, stage, SUM(self_duration) AS own, count(*) AS calls
FROM python.torch_trace WHERE step BETWEEN {first} AND {last} GROUP BY ALL
"""
DEVICE = """
SELECT module, stage, SUM(device_duration) / count(DISTINCT step) AS device
FROM python.torch_trace
WHERE step BETWEEN {first} AND {last} AND device_duration IS NOT NULL GROUP BY ALL
"""
PROBES = "SELECT SUM(duration) AS own FROM python.torch_trace WHERE module = 'Identity'"
STEPS = """
SELECT SUM(dur_ns) / 1e9 AS duration, SUM(backward_ns) / 1e9 AS backward,
    SUM(owned_pct / 100 * backward_ns) / SUM(backward_ns) AS owned
FROM python.torch_step WHERE step BETWEEN {first} AND {last}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=5, help="default: %(default)s")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    with child.open_root() as root, use_root(root):
        lines = list(look_at_host(args.device, args.steps))
        if args.device != "cpu":
            lines += look_at_device(args.device, args.steps)
    print(f"torch {torch.__version__} on {args.device}, {args.steps} steps")
    for what, found, goal, agrees in lines:
        print(f"{what:<58} {found:>18}   {goal:<12} {'agrees' if agrees else 'DIFFERS'}")
    return 0 if all(agrees for *_, agrees in lines) else 1


def look_at_host(device: str, count: int) -> list[Line]:
    """Times of the host. A device that has more to do than it can queue makes the host wait in
    whatever it launches next, an event of ours or not: so it has nothing left before a step."""
    shape = CPU_LARGE if device == "cpu" else GPU
    folder, _, first, events = watch(shape, device, count, from_idle=True)
    recording = sonde.open(folder)
    span = {"first": first, "last": first + count - 1}
    witness = Witness(events)
    witness.take_off_labels(recording.query(PROBES).to_pylist()[0]["own"])
    whole = recording.query(STEPS.format(**span)).to_pylist()[0]
    return compare(recording.query(SQL.format(**span)).to_pylist(), whole, witness)


def look_at_device(device: str, count: int) -> list[Line]:
    """Times of the device. The profiler keeps the host so busy that the device may wait for it: our
    spans are those of steps just before, in which it does not. Kernels take as long in both."""
    folder, free, _, events = watch(GPU_LARGE, device, count, from_idle=False)
    rows = sonde.open(folder).query(DEVICE.format(first=free, last=free + count - 1)).to_pylist()
    return list(compare_device(rows, Witness(events), count))


@contextmanager
def use_root(root: str) -> Iterator[None]:
    """Record below a folder that is gone afterwards."""
    with patch.dict("os.environ", SONDE_DIR=root):
        yield


def watch(
    shape: Shape, device: str, count: int, from_idle: bool
) -> tuple[str, int, int, list[Any]]:
    """Steps recorded by sonde alone, then by the profiler, too: our folder, the first of each kind,
    the profiler's events."""
    torch.set_num_threads(1)
    model, train = make_step(shape, device)
    names = {id(module): f"GPT.{path}".rstrip(".") for path, module in model.named_modules()}

    def step() -> None:
        if from_idle:
            finish(device)
        train()

    settings = {"collector": False, "follow": False, "source_stack": False, "source_gc": False}
    if "torch.budget_pct" in config.list_keys():
        settings["torch_budget_pct"] = 0
    folder = sonde.start(**settings)
    assert folder is not None
    for _ in range(5):
        step()
    free = steps.number
    for _ in range(count):
        step()
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device != "cpu" else [])
    with label_calls(names), torch.profiler.profile(activities=kinds) as profiler:
        # The profiler's first step is slow in places that only it sees.
        for _ in range(3):
            step()
        first = steps.number
        with record_function(WATCHED):
            for _ in range(count):
                step()
            finish(device)
            probe = nn.Identity()
            names[id(probe)] = PROBE
            for _ in range(N_PROBES):
                probe(0)
    sonde.stop()
    return folder, free, first, list(profiler.events())


def finish(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


@contextmanager
def label_calls(names: dict[int, str]) -> Iterator[None]:
    """A label around every call of a module, outside of ours: it adds to the callers of both."""
    inner = vars(nn.Module)["__call__"]

    def labelled(self: nn.Module, *args: object, **kwargs: object) -> object:
        with record_function(LABEL + names.get(id(self), "?")):
            return inner(self, *args, **kwargs)

    nn.Module.__call__ = labelled
    try:
        yield
    finally:
        nn.Module.__call__ = inner


class Witness:
    """What the profiler says of each module."""

    def __init__(self, events: list[Any]) -> None:
        (watched,) = [event for event in events if event.name == WATCHED and is_host(event)]
        begin, end = watched.time_range.start, watched.time_range.end
        self.events = sorted(
            (event for event in events if is_host(event) and begin <= event.time_range.start < end),
            key=lambda event: event.time_range.start,
        )
        self.forward = self._sum_labels()
        self.owners = self._find_owners()
        self.backward, self.nodes_s = self._sum_nodes()
        self.device = {"forward": Times(), "backward": Times()}
        for event in self.events:
            # Calls of CUDA and waits for room in its queue have numbers of their own, and get the
            # kernels of the operators that have the same ones by chance.
            for kernel in event.kernels if "::" in event.name else ():
                self._charge(event, kernel.duration / 1e6)

    def _sum_labels(self) -> Times:
        """The time in each module, without those inside it."""
        found: Times = {}
        for event in self.events:
            module = read_label(event)
            if module is not None:
                took = event.time_range.elapsed_us() / 1e6
                found[module] = found.get(module, 0.0) + took
                above = find_above(event.cpu_parent)
                if above is not None:
                    found[above] = found.get(above, 0.0) - took
        return found

    def take_off_labels(self, probes_s: float) -> None:
        """Leave out what the labels themselves take, seen where there is nothing else inside."""
        label_s = (self.forward.pop(PROBE) - probes_s) / N_PROBES
        for event in self.events:
            module = read_label(event)
            if module is not None and module != PROBE:
                self.forward[module] -= label_s

    def _find_owners(self) -> dict[tuple[int, int], str]:
        """By thread and sequence number, whose operator it was. Several operators begin with one
        number; the last of them has made the node."""
        found: dict[tuple[int, int], str] = {}
        for event in self.events:
            # What the engine does for a node tells the thread of its forward operator.
            if event.sequence_nr >= 0 and not event.fwd_thread and not is_backward(event):
                found[event.thread, event.sequence_nr] = find_above(event) or ""
        return found

    def _sum_nodes(self) -> tuple[Times, float]:
        """The time in nodes of backward by module, and of all. A node without a number (gradients
        are added up) belongs to the one before it."""
        found: Times = {}
        self.node_owner: dict[int, str] = {}
        whole, last = 0.0, ""
        for event in self.events:
            if event.scope == BACKWARD and not is_backward(event.cpu_parent):
                if event.sequence_nr >= 0:
                    last = self.owners.get((event.fwd_thread, event.sequence_nr), "")
                took = event.time_range.elapsed_us() / 1e6
                whole += took
                self.node_owner[id(event)] = last
                if last:
                    found[last] = found.get(last, 0.0) + took
        return found, whole

    def _charge(self, event: Any, seconds: float) -> None:
        """A kernel to the module whose operator or node launched it."""
        node = event
        while node is not None and id(node) not in self.node_owner:
            node = node.cpu_parent
        stage = "forward" if node is None else "backward"
        module = find_above(event) if node is None else self.node_owner[id(node)]
        if module:
            sums = self.device[stage]
            sums[module] = sums.get(module, 0.0) + seconds


def is_host(event: Any) -> bool:
    return event.device_type == torch.autograd.DeviceType.CPU and not event.is_async


def read_label(event: Any) -> str | None:
    return event.name.removeprefix(LABEL) if event.name.startswith(LABEL) else None


def find_above(event: Any) -> str | None:
    """The module in whose label something ran."""
    while event is not None:
        module = read_label(event)
        if module is not None:
            return module
        event = event.cpu_parent
    return None


def is_backward(event: Any) -> bool:
    """Did it run inside a node of backward?"""
    while event is not None:
        if event.scope == BACKWARD:
            return True
        event = event.cpu_parent
    return False


# ---- side by side --------------------------------------------------------------------------------


def compare(rows: list[dict[str, Any]], whole: dict[str, Any], witness: Witness) -> list[Line]:
    """What is to agree: what it is, what was found, what is asked, and whether it is met."""
    ours = {
        stage: {row["module"]: row["own"] for row in rows if row["stage"] == stage}
        for stage in ("forward", "backward")
    }
    step_s = whole["duration"]
    lines = []
    for stage, theirs in (("forward", witness.forward), ("backward", witness.backward)):
        off = find_difference(ours[stage], theirs) / step_s
        worst = max(ours[stage], key=lambda name: abs(ours[stage][name] - theirs.get(name, 0.0)))
        what = f"{stage} of {len(theirs)} modules: sum of differences"
        lines.append((what, f"{off:.2%} of a step", "at most 10 %", off <= 0.1))
        gap = abs(ours[stage][worst] - theirs.get(worst, 0.0)) / step_s
        lines.append((f"  most of it: {worst}", f"{gap:.2%} of a step", "at most 10 %", gap <= 0.1))
    owned = whole["owned"] or 0.0
    lines.append(("backward that has an owner", f"{owned:.1%}", "95 %", owned >= 0.95))
    theirs_s = sum(witness.backward.values())
    share = sum(ours["backward"].values()) / theirs_s
    what = f"  of the {theirs_s / witness.nodes_s:.1%} that the profiler can give to a module"
    lines.append((what, f"{share:.1%}", "95 %", share >= 0.95))
    return lines


def find_difference(ours: Times, theirs: Times) -> float:
    """Time that one of the two gives to a module and the other does not."""
    names = {*ours, *theirs}
    return sum(abs(ours.get(name, 0.0) - theirs.get(name, 0.0)) for name in names)


def compare_device(rows: list[dict[str, Any]], witness: Witness, count: int) -> Iterator[Line]:
    """Our spans of the device's time beside the sums of kernels, of modules large enough."""
    for stage, kernels in witness.device.items():
        theirs = {name: s / count for name, s in include_inner(kernels).items()}
        whole = max(theirs.values(), default=0.0)
        ours = {row["module"]: row["device"] for row in rows if row["stage"] == stage}
        large = [name for name, seconds in theirs.items() if seconds >= LARGE * whole]
        gaps = sorted(abs((ours.get(name) or 0.0) / theirs[name] - 1) for name in large)
        if not gaps:
            yield f"device, {stage}", "no kernels", "at most 10 %", False
            continue
        middle, near = gaps[len(gaps) // 2], sum(gap <= 0.1 for gap in gaps)
        yield (
            f"device, {stage}: {len(gaps)} large modules, median difference",
            f"{middle:.1%}", "at most 10 %", middle <= 0.1,
        )  # fmt: skip
        yield (
            "  of them within 10 %", f"{near} of {len(gaps)}", "9 of 10", near >= 0.9 * len(gaps),
        )  # fmt: skip


def include_inner(own: Times) -> Times:
    """Times with those of the modules inside: names here have no dots of their own."""
    found: Times = {}
    for name, seconds in own.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            outer = ".".join(parts[:end])
            found[outer] = found.get(outer, 0.0) + seconds
    return {name: seconds for name, seconds in found.items() if not name.endswith(".blocks")}


if __name__ == "__main__":
    sys.exit(main())
