"""Workers of a pool without a task, while one has: on samples made by hand."""

from __future__ import annotations

from collections import namedtuple

import duckdb

from sonde.advice.rules import idle_workers
from sonde.advice.verdict import Limits, Verdict

LIMITS = Limits({name: limit.default for name, limit in idle_workers.LIMITS.items()})
LIBRARY = "/lib/python3.12/multiprocessing"
MAIN, LOOP = ("batch", "/job/app.py"), ("worker", f"{LIBRARY}/pool.py")
STACKS = (
    [MAIN, ("ApplyResult.wait", f"{LIBRARY}/pool.py")],
    [LOOP, ("parse", "/job/app.py")],
    [LOOP, ("SimpleQueue.get", f"{LIBRARY}/queues.py")],
)
ASKS, TASK, REST = range(3)


def judge(turns: list[list[int]], asking_pct: int = 100, workers: int = 4) -> Verdict:
    """Judge 10 s of a pool; `turns` has the workers that have a task in each of its tenths."""
    samples = []
    for tenth, busy in enumerate(turns):
        for worker in range(workers):
            samples.append((10 + worker, tenth, TASK if worker in busy else REST))
        if tenth < asking_pct / 100 * len(turns):
            samples.append((1, tenth, ASKS))
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE SCHEMA python;"
            "CREATE TABLE python.frame(stack INT, depth INT, func TEXT, file TEXT, lineno INT);"
            "CREATE TABLE python.stack_sample(host TEXT, pid INT, thread INT, stack INT, call TEXT,"
            " idle BOOL, t_ns BIGINT, wall_ns BIGINT)"
        )
        for stack, frames in enumerate(STACKS):
            for depth, (func, file) in enumerate(reversed(frames)):
                row = [stack, depth, func, file, 10 * stack + depth]
                connection.execute("INSERT INTO python.frame VALUES (?, ?, ?, ?, ?)", row)
        for pid, tenth, stack in samples:
            connection.execute(
                "INSERT INTO python.stack_sample VALUES ('alpha', ?, ?, ?, NULL, ?, ?, 990000000)",
                [pid, pid, stack, stack != TASK, (tenth + 1) * 10**9],
            )
        sql = idle_workers.SQL.format(piece="0", inside="TRUE", piece_s="10", **LIMITS)
        found = connection.execute(sql)
        make = namedtuple("Found", [column[0] for column in found.description])
        (verdict,) = idle_workers.judge([make(*row) for row in found.fetchall()], LIMITS)
    return verdict


def test_workers_without_a_task_while_one_has_are_a_warning_with_the_line_that_waits() -> None:
    verdict = judge([[tenth % 4] for tenth in range(10)])  # in turn: each has as much to do
    assert verdict.fired and verdict.severity == "warning"
    assert verdict.evidence["workers"] == 4 and verdict.line == "/job/app.py:1 in batch"
    assert 95 < verdict.evidence["only_one_has_a_task_pct"] <= 105


def test_one_of_two_workers_without_a_task_is_mentioned() -> None:
    verdict = judge([[0]] * 4 + [[1]] * 4 + [[0, 1]] * 2, workers=2)
    assert verdict.fired and verdict.severity == "info"
    assert not judge([[0]] * 6 + [[0, 1]] * 4, workers=2).fired


def test_workers_that_have_tasks_at_the_same_time_are_well() -> None:
    assert not judge([[0, 1, 2, 3]] * 10).fired
    assert not judge([[0, 1, 2, 3]] * 7 + [[0]] * 3).fired  # the last one is the longest


def test_a_pool_that_nobody_waits_for_may_rest() -> None:
    assert not judge([[0]] * 10, asking_pct=20).fired
