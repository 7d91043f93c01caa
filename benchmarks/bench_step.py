"""What sonde runs at the end of a training step, in microseconds: hooks, rows, and the budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import fmean

import child
from result import Result, find_noise

WARM, BLOCK = 120, 40  # steps until the budget thinks now and then; steps of one sample
BLOCKS = 5  # a round
GOAL_US = 5.0
BEGIN, END, BATCH = "an optimizer begins", "a step ends", "a batch is taken"
WARM_END = "in a loop of nothing else"


def measure(rounds: int) -> list[Result]:
    if find_spec("torch") is None:
        return [Result("the end of a step", "µs", [], note="torch is not installed here")]
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        with child.open_root() as root:
            for name, samples in child.call(time_ends, BLOCKS, root=root).items():
                found.setdefault(name, []).extend(samples)
    whole = [begin + end for begin, end in zip(found[BEGIN], found[END], strict=True)]
    note = "between real steps of 101 modules, so out of cold caches"
    return [
        Result("hooks of a step", "µs", whole, GOAL_US, noise=find_noise(whole), note=note),
        *(Result(f"  {part}", "µs", found[part]) for part in (BEGIN, END)),
        Result(f"  {BATCH}", "µs", found[BATCH], note="beside torch's own time"),
        Result(f"hooks {WARM_END}", "µs", found[WARM_END], note="out of warm caches"),
    ]


# ---- in a process of its own ---------------------------------------------------------------------


class Timed:
    """A hook of torch's, and the CPU time that it takes: another program's is not in it."""

    _torchdynamo_disable = True

    def __init__(self, hook: Callable[..., object]) -> None:
        self.hook, self.spent_ns = hook, 0

    def __call__(self, *args: object) -> object:
        begin = time.thread_time_ns()
        result = self.hook(*args)
        self.spent_ns += time.thread_time_ns() - begin
        return result


def time_ends(blocks: int) -> dict[str, list[float]]:
    """Microseconds a step in each of sonde's hooks, block by block."""
    import torch
    from bench_torch import record
    from torch.optim import optimizer
    from transformer import CPU, make_step

    torch.set_num_threads(1)
    _model, step = make_step(CPU, "cpu")
    with record():
        timed = {
            BEGIN: time_hook(optimizer._global_optimizer_pre_hooks),
            END: time_hook(optimizer._global_optimizer_post_hooks),
        }
        for _ in range(WARM):
            step()
        found: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(blocks):
            for one in timed.values():
                one.spent_ns = 0
            for _ in range(BLOCK):
                step()
            for name, one in timed.items():
                found[name].append(one.spent_ns / BLOCK / 1e3 - time_nothing())
        hooks = [one.hook for one in timed.values()]
        found[WARM_END] = [
            time_alone(hooks, torch.optim.SGD([torch.zeros(1)])) for _ in range(blocks)
        ]
        found[BATCH] = [time_batches() for _ in range(blocks)]
        for hooks in (
            optimizer._global_optimizer_pre_hooks,
            optimizer._global_optimizer_post_hooks,
        ):
            del hooks[-1]
    bare = fmean(time_batches() for _ in range(blocks))
    found[BATCH] = [one - bare for one in found[BATCH]]
    return found


def time_hook(hooks: dict[int, Callable[..., object]]) -> Timed:
    """Put a clock around the one hook that is there: sonde's. One that does nothing comes before:
    so the clock's own code is warm, and only what it measures is not."""
    ((key, hook),) = hooks.items()
    timed = Timed(hook)
    hooks.clear()
    hooks.update({-1: Timed(lambda *_args: None), key: timed})
    return timed


def time_nothing() -> float:
    """Microseconds that a clock around nothing shows."""
    timed = Timed(lambda *_args: None)
    for _ in range(BLOCK):
        timed(None, (), {})
    return timed.spent_ns / BLOCK / 1e3


def time_alone(hooks: list[Callable[..., object]], optimizer: object, count: int = 4000) -> float:
    """Microseconds a step of hooks that are called as an optimizer would, again and again."""
    begin = time.thread_time_ns()
    for _ in range(count):
        for hook in hooks:
            hook(optimizer, (), {})
    return (time.thread_time_ns() - begin) / count / 1e3


def time_batches(count: int = 20_000) -> float:
    """Microseconds of `next()` of an iterator over a DataLoader whose batches are there."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    class Ready(_BaseDataLoaderIter):
        def __init__(self) -> None:
            self._sampler_iter, self._num_yielded, self._profile_name = [None], 0, "ready"
            self._dataset_kind = self._IterableDataset_len_called = None
            self._dataset, self._index_sampler = (), ()

        def _next_data(self) -> None:
            return None

    iterator = Ready()
    begin = time.thread_time_ns()
    for _ in range(count):
        next(iterator)
    return (time.thread_time_ns() - begin) / count / 1e3
