"""How a model is called, forward and backward: on steps made by hand."""

from __future__ import annotations

import pytest

from sonde.advice.rules import (
    dense_embedding,
    growing_passes,
    inner_loop,
    long_backward,
    own_overhead,
    recomputed,
    single_examples,
)
from sonde.advice.verdict import Verdict
from support.handmade_samples import judge_rows

MS = 10**6
TORCH = "/lib/python3.12/site-packages/torch"
MODULE, CHECKPOINT = f"{TORCH}/nn/modules/module.py", f"{TORCH}/utils/checkpoint.py"
STACK = [("learn", "/job/train.py"), ("Module._call_impl", MODULE), ("forward", "/job/net.py")]
AGAIN = [("run", "/job/net.py"), ("checkpoint", CHECKPOINT), ("forward", "/job/block.py")]


def make_samples(*stacks):
    """The main thread in these stacks, root first, for a second in each."""
    frames = [
        {"stack": stack, "depth": depth, "func": func, "file": file, "lineno": 10 * stack + depth}
        for stack, one in enumerate(stacks, 1)
        for depth, (func, file) in enumerate(reversed(one))
    ]
    samples = [{"thread": 7, "stack": stack, "wall_ns": 10**9} for stack, _ in enumerate(stacks, 1)]
    return {"python.frame": frames, "python.stack_sample": samples}


def make_step(number: int, **changes: object) -> dict[str, object]:
    usual = {
        "step": number, "dur_ns": 100 * MS, "forward_ns": 30 * MS, "backward_ns": 60 * MS,
        "ended_by": "optimizer", "training": True, "calls": 1, "backward_passes": 1, "lost": 0,
        "unrecorded": False,
    }  # fmt: skip
    return usual | changes


# ---- single_examples -----------------------------------------------------------------------------


def judge_calls(models: int = 1, **changes: object) -> Verdict:
    """Judge 20 steps, in which some models are called 64 times in all."""
    steps = [make_step(at, **{"calls": 64} | changes) for at in range(20)]
    calls = [
        {"step": 0, "module": f"Net{at}", "stage": "forward", "depth": 0} for at in range(models)
    ]
    tables = {"python.torch_step": steps, "python.torch_trace": calls, **make_samples(STACK)}
    (verdict,) = judge_rows(single_examples, tables)
    return verdict


def test_a_model_that_is_called_for_each_example_is_a_warning_with_the_line_that_calls_it() -> None:
    found = judge_calls()
    assert (found.fired, found.severity) == (True, "warning")
    assert found.line == "/job/train.py:12 in learn"
    assert found.evidence["calls_in_a_step"] == 64
    assert found.evidence["each_ns"] == pytest.approx(30 * MS / 64)


@pytest.mark.parametrize(
    "changes",
    [
        {"calls": 4},
        {"backward_passes": 64},  # gradients of small batches are added up
        {"backward_ns": 5 * MS, "dur_ns": 40 * MS},  # an agent acts, which is not learnt from
        {"forward_ns": 1000 * MS, "backward_ns": 2000 * MS, "dur_ns": 3100 * MS},  # much in each
        {"dur_ns": 1000 * MS},  # most of the time goes elsewhere
        {"models": 64},  # an ensemble
    ],
)
def test_other_programs_that_call_models_often_are_not(changes: dict[str, int]) -> None:
    assert not judge_calls(**changes).fired


# ---- long_backward -------------------------------------------------------------------------------


def judge_backward(backward_ms: int, device: str = "cpu") -> list[Verdict]:
    steps = [
        make_step(at, backward_ns=backward_ms * MS, dur_ns=(40 + backward_ms) * MS)
        for at in range(10)
    ]
    memory = [{"device": device}]
    return judge_rows(long_backward, {"python.torch_step": steps, "python.torch_memory": memory})


def test_a_backward_pass_that_goes_back_into_earlier_steps_is_told_by_its_length() -> None:
    (found,) = judge_backward(4000)
    assert found.fired and found.evidence["times_all_else"] == 100
    assert found.lost_pct == pytest.approx(97, abs=1)


def test_a_usual_backward_pass_is_not() -> None:
    (found,) = judge_backward(80)
    assert not found.fired


def test_on_a_gpu_a_backward_pass_may_only_wait_for_the_forward_pass() -> None:
    assert judge_backward(4000, "cuda:0") == []


# ---- recomputed ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("again_s", "fired"), [(0.03, True), (0.002, False)])
def test_modules_that_are_computed_again_are_mentioned_with_the_line_that_asks_for_it(
    again_s: float, fired: bool
) -> None:
    steps = [make_step(at) for at in range(10)]
    rows = [{"step": at, "stage": "recompute", "self_duration": again_s} for at in range(10)]
    tables = {"python.torch_step": steps, "python.torch_trace": rows, **make_samples(AGAIN)}
    (found,) = judge_rows(recomputed, tables)
    assert (found.fired, found.severity) == (fired, "info")
    assert found.line == "/job/net.py:12 in run"


# ---- growing_passes ------------------------------------------------------------------------------


def judge_passes(used_ms: list[float], device: str = "cpu") -> list[Verdict]:
    """Judge calls of a model that use a processor for so long; others have it as well."""
    steps = [
        make_step(
            at, training=False, ended_by="root", cpu_ns=round(used * MS), dur_ns=(at % 7) * 50 * MS
        )
        for at, used in enumerate(used_ms)
    ]  # fmt: skip
    tables = {"python.torch_step": steps, "python.torch_memory": [{"device": device}]}
    return judge_rows(growing_passes, {**tables, **make_samples(STACK)})


def make_texts(texts: int, tokens: int, growth: float) -> list[float]:
    return [2 + growth * at + 0.3 * (at % 3) for _ in range(texts) for at in range(tokens)]


def test_passes_that_grow_and_begin_anew_are_a_warning_with_the_line_that_calls_the_model() -> None:
    (found,) = judge_passes(make_texts(5, 60, 0.1))
    assert found.fired and found.most == "warning"
    assert found.line == "/job/train.py:12 in learn"
    assert found.evidence["times_begun"] == 5
    assert found.evidence["calls_in_a_row"] == 60
    assert found.lost_pct == pytest.approx(50, abs=10)


def test_one_row_of_growing_passes_is_only_mentioned() -> None:
    (found,) = judge_passes(make_texts(1, 60, 0.1))
    assert found.fired and found.most == "info"


@pytest.mark.parametrize(
    "used_ms",
    [
        make_texts(5, 60, 0.0),  # as long each time
        make_texts(5, 60, 0.02),  # hardly longer: attention over what is kept
        [2.0 + 5 * (at * 7919 % 13) for at in range(300)],  # of all lengths
    ],
)
def test_passes_that_are_as_long_or_of_all_lengths_are_not(used_ms: list[float]) -> None:
    assert not any(found.fired for found in judge_passes(used_ms))


# ---- inner_loop ----------------------------------------------------------------------------------


def judge_inside(calls: int, each_s: float = 0.0002) -> Verdict:
    """Judge 20 steps; in the first, a cell inside of the model was called so often."""
    inner = [
        {"step": 0, "module": "Net.cell", "stage": "forward", "depth": 1, "duration": each_s}
        for _ in range(calls)
    ]
    outer = {"step": 0, "module": "Net", "stage": "forward", "depth": 0, "duration": 0.03}
    steps = [make_step(at) for at in range(20)]
    tables = {"python.torch_step": steps, "python.torch_trace": [outer, *inner]}
    (verdict,) = judge_rows(inner_loop, {**tables, **make_samples(STACK)})
    return verdict


def test_a_cell_that_is_stepped_through_time_is_a_warning_with_the_line_in_the_model() -> None:
    found = judge_inside(100)
    assert (found.fired, found.severity, found.line) == (
        True,
        "warning",
        "/job/net.py:10 in forward",
    )
    assert found.evidence["module"] == "Net.cell" and found.evidence["calls_in_a_step"] == 100


@pytest.mark.parametrize(("calls", "each_s"), [(12, 0.0002), (40, 0.0001), (40, 0.01)])
def test_few_calls_or_small_ones_or_long_ones_are_not(calls: int, each_s: float) -> None:
    assert not judge_inside(calls, each_s).fired


# ---- dense_embedding -----------------------------------------------------------------------------


def judge_table(
    values: int = 5_000_000, rest: int = 10_000, optimizer_ms: int = 80, optimizer: str = "Adam"
) -> Verdict:
    modules = [
        {"module": "Net.users", "type": "Embedding", "own_parameters": values, "t_ns": 1},
        {"module": "Net.out", "type": "Linear", "own_parameters": rest, "t_ns": 1},
    ]
    steps = [make_step(at, optimizer_ns=optimizer_ms * MS) for at in range(20)]
    used = [{"optimizer": optimizer}]
    (verdict,) = judge_rows(
        dense_embedding,
        {
            "python.torch_step": steps,
            "python.torch_module": modules,
            "python.torch_optimizer": used,
        },
    )
    return verdict


def test_an_embedding_table_that_takes_most_of_each_step_to_update_is_told() -> None:
    found = judge_table()
    assert found.fired and found.lost_pct == pytest.approx(80, abs=1)
    assert found.evidence["largest"] == "Net.users"


@pytest.mark.parametrize(
    "change",
    [{"values": 1000}, {"rest": 10_000_000}, {"optimizer_ms": 20}, {"optimizer": "SparseAdam"}],
)
def test_a_small_table_a_large_model_a_quick_or_sparse_optimizer_are_not(
    change: dict[str, int],
) -> None:
    assert not judge_table(**change).fired


# ---- own_overhead --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("direct_pct", "high_pct", "fired"), [(30.0, None, True), (30.0, 9.0, True), (30.0, 2.0, False)]
)
def test_what_recording_takes_is_no_more_than_steps_with_and_without_it_differ(
    direct_pct: float, high_pct: float | None, fired: bool
) -> None:
    cost = {"source": "torch", "step": 99, "direct_pct": direct_pct, "high_pct": high_pct,
            "low_pct": None if high_pct is None else -1.0}  # fmt: skip
    steps = [make_step(at) for at in range(20)]
    (found,) = judge_rows(own_overhead, {"python.torch_step": steps, "sonde.overhead": [cost]})
    assert found.fired == fired
