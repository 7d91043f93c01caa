"""Threads that wait for room in a queue: on samples made by hand."""

from __future__ import annotations

from collections import namedtuple

import duckdb
import pytest

from sonde.advice.rules import full_queue
from sonde.advice.verdict import Limits, Verdict

LIMITS = Limits({name: limit.default for name, limit in full_queue.LIMITS.items()})
QUEUE = "/lib/python3.12/queue.py"
PUT = [("read", "/job/logs.py"), ("Queue.put", QUEUE)]
GET = [("write", "/job/logs.py"), ("Queue.get", QUEUE)]
STORE = [("write", "/job/logs.py"), ("store", "/job/disk.py")]
STACKS = [PUT, GET, STORE, [("read", "/job/logs.py")]]


def judge(put_s: float, store_s: float, store_wait: str | None = None) -> Verdict:
    """Judge 10 s of two threads that put and one that takes, for so many seconds each."""
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE SCHEMA python;"
            "CREATE TABLE python.frame(stack INT, depth INT, func TEXT, file TEXT, lineno INT);"
            "CREATE TABLE python.stack_sample(host TEXT, pid INT, thread INT, stack INT, call TEXT,"
            " gil BOOL, idle BOOL, wait TEXT, wall_ns BIGINT, cpu_ns BIGINT, queue_ns BIGINT,"
            " samples INT)"
        )
        for stack, frames in enumerate(STACKS):
            for depth, (func, file) in enumerate(reversed(frames)):
                row = [stack, depth, func, file, 10 * stack + depth]
                connection.execute("INSERT INTO python.frame VALUES (?, ?, ?, ?, ?)", row)
        rows = [(8, 0, "lock", put_s), (8, 3, None, 10 - put_s), (9, 0, "lock", put_s),
                (9, 3, None, 10 - put_s), (10, 1, "lock", 10 - store_s),
                (10, 2, store_wait, store_s)]  # fmt: skip
        for thread, stack, wait, wall_s in rows:
            connection.execute(
                "INSERT INTO python.stack_sample VALUES"
                " ('alpha', 7, ?, ?, NULL, FALSE, ?, ?, ?, 0, 0, 100)",
                [thread, stack, wait is not None, wait, round(wall_s * 1e9)],
            )
        found = connection.execute(full_queue.SQL.format(piece="0", inside="TRUE", **LIMITS))
        make = namedtuple("Found", [column[0] for column in found.description])
        (verdict,) = full_queue.judge([make(*row) for row in found.fetchall()], LIMITS)
    return verdict


def test_who_takes_from_a_full_queue_is_named_with_what_it_does() -> None:
    found = judge(9.0, 9.9)
    assert (found.fired, found.severity) == (True, "info")
    assert found.line == "/job/disk.py:20 in store"
    assert found.evidence["threads_that_put"] == 2
    assert found.evidence["threads_that_take"] == 1
    assert found.evidence["those_have_work_pct"] == pytest.approx(99)
    assert found.evidence["waiting_at"] == "/job/logs.py:1 in read"
    assert found.evidence["mostly"] == "at work"
    assert judge(9.0, 9.9, "disk").evidence["mostly"] == "waiting for a disk"


@pytest.mark.parametrize(("put_s", "store_s"), [(2.0, 9.9), (9.0, 2.0)])
def test_a_queue_with_room_or_a_taker_without_work_is_not(put_s: float, store_s: float) -> None:
    assert not judge(put_s, store_s).fired
