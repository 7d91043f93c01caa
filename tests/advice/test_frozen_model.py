"""Models of which nothing is trained: on steps made by hand."""

from __future__ import annotations

from collections import namedtuple

import duckdb
import pytest

from sonde.advice.rules import frozen_model
from sonde.advice.verdict import Limits, Verdict

LIMITS = Limits({name: limit.default for name, limit in frozen_model.LIMITS.items()})


def judge(
    frozen_s: float = 0.05, parameters: int = 900, seen_pct: int = 0, head_pct: int = 100
) -> list[Verdict]:
    """Judge 100 steps of 0.1 s with a backbone and a head; the backward passes of each are seen in
    so many steps of a hundred."""
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE SCHEMA python;"
            "CREATE TABLE python.torch_step(host TEXT, pid INT, rank INT, step INT, t_ns BIGINT,"
            " dur_ns BIGINT, training BOOL, unrecorded BOOL, lost INT, ended_by TEXT);"
            "CREATE TABLE python.torch_trace(host TEXT, pid INT, step INT, module TEXT, stage TEXT,"
            " duration DOUBLE, depth INT);"
            "CREATE TABLE python.torch_module(host TEXT, pid INT, module TEXT, type TEXT,"
            " parameters INT);"
            f"INSERT INTO python.torch_module VALUES ('a', 7, 'base', 'ResNet', {parameters}),"
            " ('a', 7, 'head', 'Linear', 10);"
            "INSERT INTO python.torch_step SELECT 'a', 7, NULL, n, n * 10**8, 10**8, TRUE, FALSE, 0,"
            " 'optimizer' FROM range(100) AS r(n);"
            f"INSERT INTO python.torch_trace SELECT 'a', 7, n, 'base', 'forward', {frozen_s}, 0"
            " FROM range(100) AS r(n);"
            "INSERT INTO python.torch_trace SELECT 'a', 7, n, 'head', 'forward', 0.001, 0"
            " FROM range(100) AS r(n);"
            "INSERT INTO python.torch_trace SELECT 'a', 7, n, 'base', 'backward', 0.001, 0"
            f" FROM range({seen_pct}) AS r(n);"
            "INSERT INTO python.torch_trace SELECT 'a', 7, n, 'head', 'backward', 0.001, 0"
            f" FROM range({head_pct}) AS r(n)"
        )
        found = connection.execute(frozen_model.SQL.format(piece="0", inside="TRUE", **LIMITS))
        make = namedtuple("Found", [column[0] for column in found.description])
        return list(frozen_model.judge([make(*row) for row in found.fetchall()], LIMITS))


def test_a_model_that_is_asked_in_each_step_and_never_trained_is_mentioned() -> None:
    (found,) = judge()
    assert (found.fired, found.severity) == (True, "info")
    assert found.evidence["module"] == "ResNet"
    assert found.evidence["of_the_step_pct"] == pytest.approx(50)


@pytest.mark.parametrize(
    "change",
    [
        {"frozen_s": 0.01},
        {"parameters": 0},  # a loss
        {"seen_pct": 5},  # it is trained now and then
        {"head_pct": 30},  # backward passes are not always seen
    ],
)
def test_others_are_not(change: dict[str, float]) -> None:
    assert not any(verdict.fired for verdict in judge(**change))
