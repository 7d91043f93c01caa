"""What recording every module of every step costs on a CPU, beside other ways."""

from __future__ import annotations

import gc
import random
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from itertools import cycle
from statistics import median

import child
from result import Result

SECONDS = 10  # a round, which is a process of its own, for each model
MOST_ROUNDS = 20
WARM = 3  # steps after each change: names are given, events of the device begin
SETTLE = 80  # steps after which the budget has found its level
# Everything of every step; as it is by default; installed and not enabled.
EVERY, DEFAULT = "everything, every step", "default budget"
OFF, BARE = "off", "bare, beside itself"
PEERS = ("torch.profiler", "full backward hooks", "forward hooks", "record_function per module")
_ALONE = {"collector": False, "follow": False, "source.stack": False, "source.gc": False}


def measure(rounds: int) -> list[Result]:
    if find_spec("torch") is None:
        return [Result("PyTorch", "%", [], note="torch is not installed here")]
    found = time_processes(rounds, time_cpu)
    return draw("100 modules, CPU", found, 3.0)


def time_processes(
    rounds: int, time_one: Callable[..., dict[str, object]], *args: object
) -> dict[str, object]:
    """What `time_one` finds in several processes, each with a memory layout of its own."""
    with child.open_root() as root:
        found = [
            child.call(time_one, *args, SECONDS, root=root) for _ in range(min(rounds, MOST_ROUNDS))
        ]
    ratios = {
        name: [value for one in found for value in one["ratios"][name]]
        for name in found[0]["ratios"]
    }
    bare = median(one["bare"] for one in found)
    return {"ratios": ratios, "bare": bare, "clock": found[0]["clock"]}


def draw(model: str, found: dict[str, object], goal: float) -> list[Result]:
    """Rows of the table: what sonde costs on every step, by itself, and when it is off."""
    ratios = found["ratios"]
    peers = {name: ratios[name] for name in PEERS}
    rows = []
    limits = ((EVERY, goal), (DEFAULT, 1.0), (OFF, 0.0), (BARE, None))
    for name, limit in limits:
        samples = ratios.get(name)
        if not samples:
            continue
        low, high = find_interval(samples)
        note = f"95 % interval {low:+.2f} … {high:+.2f} %, {len(samples)} pairs"
        if name == EVERY:
            note += f"; a step is {1e3 * found['bare']:.2f} ms of {found['clock']} time; others: "
            note += ", ".join(_describe(peer, peers[peer]) for peer in PEERS)
        rows.append(
            Result(f"{model}: {name}", "%", samples, limit, noise=(high - low) / 2, note=note,
                   peers=peers if name == EVERY else {})
        )  # fmt: skip
    return rows


def _describe(name: str, samples: list[float]) -> str:
    if len(samples) < 2:
        return f"{name}: too few"
    return "{} {:+.1f} … {:+.1f}".format(name, *find_interval(samples))


def find_interval(samples: list[float], turns: int = 2000) -> tuple[float, float]:
    """Where the median lies, 19 times in 20: of samples drawn again and again from the samples."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(samples, k=len(samples))) for _ in range(turns))
    return medians[turns // 40], medians[-turns // 40]


# ---- in a process of its own ---------------------------------------------------------------------


def time_cpu(seconds: float) -> dict[str, object]:
    """Thread CPU time: another program on the machine is not in it."""
    import torch
    from transformer import CPU, make_step

    torch.set_num_threads(1)
    model, step = make_step(CPU, "cpu")

    def time_step() -> float:
        begin = time.thread_time_ns()
        step()
        return (time.thread_time_ns() - begin) / 1e9

    def time_block() -> float:
        # The median: a step that was interrupted comes back to cold caches.
        return median(time_step() for _ in range(4))

    return time_pairs(model, step, time_block, seconds, "thread CPU")


def time_pairs(
    model: object,
    step: Callable[[], object],
    time_block: Callable[[], float],
    seconds: float,
    clock: str,
    has_default: bool = False,
) -> dict[str, object]:
    """Slowdown in percent: each variant between two runs of the bare program."""
    warnings.simplefilter("ignore")
    variants = {
        EVERY: (lambda: record(**{"torch.budget_pct": 0}), WARM),
        OFF: (lambda: record(**{"source.torch": False}), WARM),
        BARE: (nullcontext, WARM),
        "torch.profiler": (profile, WARM),
        "full backward hooks": (lambda: hook_backward(model), WARM),
        "forward hooks": (lambda: hook_forward(model), WARM),
        "record_function per module": (label_calls, WARM),
    }
    if has_default:
        variants[DEFAULT] = (record, SETTLE)
    for _ in range(15):
        step()
    gc.collect()
    gc.freeze()
    ratios: dict[str, list[float]] = {name: [] for name in variants}
    bare: list[float] = []
    peers = cycle(PEERS)
    ours = [EVERY, DEFAULT, EVERY, OFF] if has_default else [EVERY, OFF, EVERY, BARE]
    end = time.monotonic() + seconds
    before = time_bare(step, time_block)
    while time.monotonic() < end or not ratios[PEERS[-1]]:
        for name in (*ours, next(peers)):
            took = time_variant(*variants[name], step, time_block)
            after = time_bare(step, time_block)
            bare.append(after)
            ratios[name].append(100 * (2 * took / (before + after) - 1))
            before = after
    return {"ratios": ratios, "bare": median(bare), "clock": clock}


def time_variant(
    make: Callable[[], AbstractContextManager[object]],
    warm: int,
    step: Callable[[], object],
    time_block: Callable[[], float],
) -> float:
    """Seconds of a step under a variant."""
    with make():
        for _ in range(warm):
            step()
        return time_block()


def time_bare(step: Callable[[], object], time_block: Callable[[], float]) -> float:
    for _ in range(WARM):
        step()  # as the others have it
    return time_block()


# ---- the variants --------------------------------------------------------------------------------


@contextmanager
def record(**settings: object) -> Iterator[str | None]:
    """Sonde, with what it records of PyTorch and nothing else; the folder."""
    import sonde
    from sonde import settings as config

    wanted = {**_ALONE, **settings}
    known = config.list_keys()
    given = {name.replace(".", "_"): wanted[name] for name in wanted if name in known}
    folder = sonde.start(**given)
    try:
        yield folder
    finally:
        sonde.stop()


@contextmanager
def profile() -> Iterator[None]:
    """Kineto; what it does at its end is not timed."""
    import torch
    from torch.profiler import ProfilerActivity

    kinds = [ProfilerActivity.CPU]
    if torch.cuda.is_initialized():
        kinds.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds):
        yield


@contextmanager
def hook_backward(model: object) -> Iterator[None]:
    handles = []
    for module in model.modules():
        handles.append(module.register_full_backward_pre_hook(lambda _m, _g: None))
        handles.append(module.register_full_backward_hook(lambda _m, _i, _o: None))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def hook_forward(model: object) -> Iterator[None]:
    """Hooks as they are mostly written: two clocks and a list."""
    times: list[int] = []

    def before(_module: object, _inputs: object) -> None:
        times.append(time.perf_counter_ns())

    def after(_module: object, _inputs: object, _output: object) -> None:
        times.append(time.perf_counter_ns())

    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(before))
        handles.append(module.register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def label_calls() -> Iterator[None]:
    """A label around every call of a module, for a profiler that is not there."""
    from torch import nn
    from torch.autograd.profiler import record_function

    original = nn.Module.__call__

    def labelled(self: object, *args: object, **kwargs: object) -> object:
        with record_function(type(self).__name__):
            return original(self, *args, **kwargs)

    nn.Module.__call__ = labelled
    try:
        yield
    finally:
        nn.Module.__call__ = original
