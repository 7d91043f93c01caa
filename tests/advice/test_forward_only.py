"""Forward passes without a backward pass: on steps made by hand."""

from __future__ import annotations

from collections import namedtuple

import duckdb
import pytest

from sonde.advice.rules import forward_only
from sonde.advice.verdict import Limits, Verdict

LIMITS = Limits({name: limit.default for name, limit in forward_only.LIMITS.items()})
MODULE = "/lib/python3.12/site-packages/torch/nn/modules/module.py"
STACKS = {
    1: [("train", "/job/train.py"), ("Module._call_impl", MODULE), ("forward", "/job/net.py")],
    2: [("check", "/job/train.py"), ("Module._call_impl", MODULE), ("forward", "/job/net.py")],
}
STEP_NS = 100_000_000


def judge(
    passes: int = 20,
    every: int = 10,
    backwards: int = 1,
    backward_s: float = 0.01,
    device_s: float = 0.0,
    usual_device_s: float = 0.0,
) -> list[Verdict]:
    """Judge 100 steps of 0.1 s, of which some have more passes, each of 5 ms."""
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE SCHEMA python;"
            "CREATE TABLE python.frame(stack INT, depth INT, func TEXT, file TEXT, lineno INT);"
            "CREATE TABLE python.stack_sample(host TEXT, pid INT, thread INT, t_ns BIGINT,"
            " stack INT, wall_ns BIGINT);"
            "CREATE TABLE python.torch_step(host TEXT, pid INT, rank INT, step INT, t_ns BIGINT,"
            " dur_ns BIGINT, backward_ns BIGINT, training BOOL, unrecorded BOOL, lost INT, ended_by TEXT);"
            "CREATE TABLE python.torch_trace(host TEXT, pid INT, step INT, module TEXT, stage TEXT,"
            " duration DOUBLE, depth INT);"
            "CREATE TABLE python.cuda_call(host TEXT, pid INT, step INT, thread INT, kind TEXT,"
            " direction TEXT, dur_ns BIGINT)"
        )
        for stack, frames in STACKS.items():
            for depth, (func, file) in enumerate(reversed(frames)):
                row = [stack, depth, func, file, 10 * stack + depth]
                connection.execute("INSERT INTO python.frame VALUES (?, ?, ?, ?, ?)", row)
        for step in range(100):
            is_long = step % every == every - 1
            count = passes if is_long else 1
            dur_ns = STEP_NS * (2 if is_long else 1)
            connection.execute(
                "INSERT INTO python.torch_step VALUES"
                " ('a', 7, NULL, ?, ?, ?, ?, TRUE, FALSE, 0, 'optimizer')",
                [step, 2 * step * STEP_NS, dur_ns, round((backward_s if is_long else 0.01) * 1e9)],
            )
            connection.execute(
                "INSERT INTO python.stack_sample VALUES ('a', 7, 7, ?, ?, ?)",
                [2 * step * STEP_NS + 1, 2 if is_long else 1, dur_ns],
            )
            connection.execute(
                "INSERT INTO python.cuda_call VALUES ('a', 7, ?, 7, 'synchronize', NULL, ?)",
                [step, round((device_s if is_long else usual_device_s) * 1e9)],
            )
            spans = [("forward", count, 0.005), ("backward", backwards, 0.01)]
            for stage, times, seconds in spans:
                for _ in range(times):
                    connection.execute(
                        "INSERT INTO python.torch_trace VALUES ('a', 7, ?, 'Net', ?, ?, 0)",
                        [step, stage, seconds],
                    )
        found = connection.execute(forward_only.SQL.format(piece="0", inside="TRUE", **LIMITS))
        make = namedtuple("Found", [column[0] for column in found.description])
        return list(forward_only.judge([make(*row) for row in found.fetchall()], LIMITS))


@pytest.mark.parametrize(("passes", "severity"), [(36, "info"), (120, "warning")])
def test_an_evaluation_inside_of_training_is_told_with_the_line_that_calls_the_model(
    passes: int, severity: str
) -> None:
    (found,) = judge(passes)
    assert (found.fired, found.severity) == (True, severity)
    assert found.line == "/job/train.py:22 in check"
    assert found.evidence["forward_passes_without_backward"] == 10 * (passes - 1)
    share = 100 * 10 * (passes - 1) * 0.005 / 11
    assert found.evidence["of_the_time_pct"] == pytest.approx(share)


@pytest.mark.parametrize(
    "change",
    [
        {"passes": 5},  # that take too little
        {"passes": 1},
        {"backward_s": 0.3},  # each has its part in a longer backward pass
        {"passes": 2, "every": 1},  # two passes for each backward pass: that is how it learns
    ],
)
def test_other_passes_are_not(change: dict[str, float]) -> None:
    assert judge(**{"passes": 36} | change) == []


def test_it_need_not_be_seen_which_module_a_backward_pass_belongs_to() -> None:
    assert len(judge(36, backwards=0)) == 1


def test_waits_of_each_step_are_not_counted() -> None:
    assert len(judge(4, every=3, device_s=0.19)) == 1
    assert judge(4, every=3, device_s=0.09, usual_device_s=0.09) == []


def test_a_gpu_that_runs_them_later_is_counted() -> None:
    assert judge(20) == []
    (found,) = judge(20, device_s=0.1)
    assert found.evidence["of_the_time_pct"] == pytest.approx(10 * (0.095 + 0.1) / 11 * 100)
