"""Backward by module from marks on parameters: what they say, and that nobody else sees them."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import sys
import threading

import pytest

from sonde import _core

# ---- the core ------------------------------------------------------------------------------------


@pytest.fixture
def run(run_torch):
    return run_torch


def test_a_mark_notes_the_time_and_its_key() -> None:
    marks = _core.TorchGradientTimes(10)
    first, second = marks.make(3), marks.make(2**32 - 1)
    before = _core.clock_ns()
    assert first(None) is None and second(1, 2, x=3) is None and first() is None
    taken = marks.take()
    assert [key for _t_ns, key in taken] == [3, 2**32 - 1, 3]
    times = [before, *(t_ns for t_ns, _key in taken), _core.clock_ns()]
    assert times == sorted(times)
    assert marks.take() == [] and marks.lost == 0


def test_marks_without_room_are_counted() -> None:
    marks = _core.TorchGradientTimes(2)
    mark = marks.make(1)
    for _ in range(5):
        mark()
    assert (len(marks.take()), marks.lost) == (2, 3)
    mark()
    assert (len(marks.take()), marks.lost) == (1, 3)


def test_marks_of_several_threads_are_all_there() -> None:
    marks = _core.TorchGradientTimes(10_000)
    made = [marks.make(key) for key in range(4)]
    threads = [
        threading.Thread(target=lambda mark=mark: [mark() for _ in range(2000)]) for mark in made
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = [key for _t_ns, key in marks.take()]
    assert sorted(keys) == [key for key in range(4) for _ in range(2000)]


def test_a_mark_outlives_whoever_made_it_and_keeps_it() -> None:
    marks = _core.TorchGradientTimes(1)
    before = sys.getrefcount(marks)
    mark = marks.make(1)
    assert sys.getrefcount(marks) == before + 1
    del marks
    mark()
    mark()


@pytest.mark.parametrize("room", [0, -1, 2**25])
def test_room_that_cannot_be_is_refused(room: int) -> None:
    with pytest.raises(ValueError):
        _core.TorchGradientTimes(room)


@pytest.mark.parametrize("key", [-1, 2**32, "1"])
def test_a_key_that_does_not_fit_is_refused(key: object) -> None:
    with pytest.raises((OverflowError, TypeError)):
        _core.TorchGradientTimes(1).make(key)


def test_what_a_compiler_sees_of_a_mark_does_not_change_what_it_does() -> None:
    marks = _core.TorchGradientTimes(4)
    mark = marks.make(7)

    def shown(*_: object) -> None:
        raise AssertionError("it was called")

    marks.show(shown)
    assert type(mark).__call__ is shown
    mark(1)
    assert [key for _t_ns, key in marks.take()] == [7]


# ---- the rule ------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def marks(torch):
    from sonde.job.torch.gradient_times import GradientTimes

    made = GradientTimes(torch)
    yield made
    made.stop()


class Scripted:
    """GradientTimes as they would have come."""

    def __init__(self, *entries: tuple[int, int]) -> None:
        self.entries = list(entries)

    def take(self) -> list[tuple[int, int]]:
        return self.entries


@pytest.mark.parametrize(
    ("entries", "begins", "found"),
    [
        ([], [5], []),
        ([(10, 0), (14, 1)], [5], [("a", 5, 10), ("b", 10, 14)]),
        ([(10, 0), (12, 0), (14, 1)], [5], [("a", 5, 12), ("b", 12, 14)]),  # weight and bias
        ([(10, 0), (14, 1)], [], [("a", 10, 10), ("b", 10, 14)]),  # where it began is not known
        ([(10, 0), (30, 0)], [5, 25], [("a", 5, 10), ("a", 25, 30)]),  # two passes
        ([(10, 0), (30, 1)], [5, 7, 25], [("a", 7, 10), ("b", 25, 30)]),  # one without marks
        ([(10, 0), (14, 1), (20, 0)], [5], [("a", 5, 10), ("b", 10, 14), ("a", 14, 20)]),
    ],
)
def test_the_time_since_the_mark_before_belongs_to_the_module(
    marks, entries, begins, found
) -> None:
    marks._names, marks._times = ["a", "b"], Scripted(*entries)
    assert marks.take(begins) == found


def make_model(torch):
    nn = torch.nn
    torch.manual_seed(3)
    inner = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), inner, nn.Linear(8, 1))


def run_backward(torch, model) -> None:
    model(torch.ones(2, 4)).sum().backward()


def list_grads(model) -> list[list[float]]:
    return [parameter.grad.flatten().tolist() for parameter in model.parameters()]


NAMES = ["Sequential.3", "Sequential.2.1", "Sequential.2.0", "Sequential.0"]


def test_modules_come_in_the_order_of_backward_one_after_the_other(torch, marks) -> None:
    model = make_model(torch)
    assert marks.watch(model) == 8
    begin_ns = _core.clock_ns()
    run_backward(torch, model)
    found = marks.take([begin_ns])
    assert [name for name, _begin, _end in found] == NAMES
    assert found[0][1] == begin_ns and found[-1][2] <= _core.clock_ns()
    for before, after in itertools.pairwise(found):
        assert before[1] < before[2] == after[1]


def test_watching_again_marks_only_what_is_new(torch, marks) -> None:
    model = make_model(torch)
    model[0].weight.requires_grad_(False)
    assert (marks.watch(model), marks.watch(model)) == (7, 0)
    model[0].weight.requires_grad_(True)
    model[3] = torch.nn.Linear(8, 2)
    assert marks.watch(model) == 3
    run_backward(torch, model)
    assert [name for name, _begin, _end in marks.take()] == NAMES


def test_a_parameter_that_two_modules_share_has_one_mark(torch, marks) -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)})
    model["b"].weight = model["a"].weight
    assert marks.watch(model, "Tied") == 3


def test_parameters_that_have_no_numbers_yet_are_marked_later(torch, marks) -> None:
    model = torch.nn.LazyLinear(3)
    assert marks.watch(model) == 0
    model(torch.ones(1, 2))
    assert marks.watch(model) == 2


def test_parameters_that_are_gone_are_forgotten(torch, marks) -> None:
    for _ in range(20):
        marks.watch(make_model(torch))
    assert len(marks._watched) <= 16


def test_stopping_leaves_no_mark_and_what_others_hooked_stays(torch) -> None:
    from sonde.job.torch.gradient_times import GradientTimes

    model, theirs = make_model(torch), []
    model[0].weight.register_post_accumulate_grad_hook(theirs.append)
    marks = GradientTimes(torch)
    marks.watch(model)
    marks.stop()
    run_backward(torch, model)
    assert marks.take() == [] and len(theirs) == 1
    hooks = [parameter._post_accumulate_grad_hooks or {} for parameter in model.parameters()]
    assert [len(one) for one in hooks] == [1] + [0] * 7


def test_a_mark_keeps_no_parameter_alive(torch, marks) -> None:
    import gc
    import weakref

    model = make_model(torch)
    marks.watch(model)
    run_backward(torch, model)
    watched = weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert watched() is None


# ---- nobody sees it ------------------------------------------------------------------------------


def test_copies_and_files_of_a_model_have_no_marks(torch, marks) -> None:
    model = make_model(torch)
    bare = pickle.dumps(model)
    marks.watch(model)
    assert pickle.dumps(model) == bare
    for again in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        save_and_load(torch, model),
    ):
        run_backward(torch, again)
        assert marks.take() == []
        assert all(not parameter._post_accumulate_grad_hooks for parameter in again.parameters())
    run_backward(torch, model)
    assert list_grads(model) == list_grads(again)
    assert set(model.state_dict()) == set(again.state_dict())


def save_and_load(torch, model):
    file = io.BytesIO()
    torch.save(model, file)
    assert b"sonde" not in file.getvalue()
    file.seek(0)
    return torch.load(file, weights_only=False)


def compile_and_run(torch, watch, backend: str):
    """Gradients, graph breaks and graphs of a compiled model, over three steps."""
    dynamo = torch._dynamo
    dynamo.reset()
    dynamo.utils.counters.clear()
    model = make_model(torch)
    watch(model)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        run_backward(torch, compiled)
    counters = dynamo.utils.counters
    return list_grads(model), dict(counters["graph_break"]), dict(counters["stats"])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_is_the_same_with_marks(torch, marks, backend: str) -> None:
    import torch._dynamo

    bare = compile_and_run(torch, lambda model: None, backend)
    marked = compile_and_run(torch, marks.watch, backend)
    assert marked == bare and marked[1] == {}
    assert {name for name, _begin, _end in marks.take()} == set(NAMES)


def test_marks_that_come_after_compilation_compile_nothing_again(torch, marks) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = make_model(torch)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    run_backward(torch, compiled)
    marks.watch(compiled)
    run_backward(torch, compiled)
    found = marks.take()
    marks.stop()
    run_backward(torch, compiled)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert len(found) == 1 and found[0][0] == "OptimizedModule"  # it is one


def test_a_part_that_is_compiled_is_one_module(torch, marks) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

        def forward(self, x):
            return self.b(self.a(x))

    torch._dynamo.reset()
    model = make_model(torch)
    model[2] = Block()
    model[2].compile(backend="aot_eager", fullgraph=True)
    marks.watch(model)
    run_backward(torch, model)
    found = [name for name, _begin, _end in marks.take()]
    assert found == ["Sequential.3", "Sequential.2", "Sequential.0"]


def test_compiled_autograd_takes_marks_for_nothing(torch, marks) -> None:
    import torch._dynamo
    from torch._dynamo import compiled_autograd

    enable = getattr(compiled_autograd, "_enable", None)
    if enable is None:
        pytest.skip("this torch has none")
    results = []
    for watch in (lambda model: None, marks.watch):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = make_model(torch)
        watch(model)
        with enable(torch.compile(backend="aot_eager", fullgraph=True)):
            for _ in range(2):
                run_backward(torch, model)
        counters = torch._dynamo.utils.counters
        results.append(
            (list_grads(model), dict(counters["graph_break"]), dict(counters["compiled_autograd"]))
        )
    assert results[0] == results[1] and results[1][1] == {}


def test_checkpointing_and_gradients_that_accumulate_are_the_same(torch, marks) -> None:
    from torch.utils.checkpoint import checkpoint

    grads = []
    for watch in (lambda model: None, marks.watch):
        model = make_model(torch)
        watch(model)
        for _ in range(2):
            x = checkpoint(model[:2], torch.ones(2, 4), use_reentrant=False)
            model[2:](x).sum().backward()
        grads.append(list_grads(model))
    assert grads[0] == grads[1]
    assert [name for name, _begin, _end in marks.take()] == NAMES * 2


RANKS = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
def make():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
def train(model, marks):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(5):
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), step + 1.0 + dist.get_rank())).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        names = [name for name, *_ in marks.take()] if marks else None
    return losses, names
def wrap(kind, model):
    if kind == "ddp": return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard
    for part in model: fully_shard(part) if list(part.parameters()) else None
    return fully_shard(model)
def work(rank, path, kind):
    from sonde.job.torch.gradient_times import GradientTimes
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
    bare, _ = train(wrap(kind, make()), None)
    marks = GradientTimes(torch)
    model = wrap(kind, make())
    assert marks.watch(model, "Net") == 6
    losses, names = train(model, marks)
    assert losses == bare, (losses, bare)
    prefix = "Net.module." if kind == "ddp" else "Net."
    assert sorted(set(names)) == [prefix + part for part in "023"], names
    marks.stop()
    dist.destroy_process_group()
    # The model must not be freed: torch then holds the GIL while it waits for a thread of gloo's,
    # and that thread may want the GIL (4 of 80 times, with nothing of ours in the program).
    os._exit(0)
if __name__ == "__main__":
    mp.start_processes(work, (sys.argv[1], sys.argv[2]), nprocs=2, start_method="fork")
    print("same")
"""


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_ranks_learn_the_same_with_marks(torch, run, tmp_path, kind: str) -> None:
    import torch.distributed.fsdp

    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    if kind == "fsdp2" and not hasattr(torch.distributed.fsdp, "fully_shard"):
        pytest.skip("before torch 2.6 this needs a GPU")
    assert run(RANKS, str(tmp_path / "store"), kind).stdout == "same\n"
