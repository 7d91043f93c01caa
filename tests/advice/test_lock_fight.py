"""Threads that wait for a lock: on samples made by hand."""

from __future__ import annotations

from collections import namedtuple

import duckdb
import pytest

from sonde.advice.rules import lock_fight
from sonde.advice.verdict import Limits, Verdict

LIMITS = Limits({name: limit.default for name, limit in lock_fight.LIMITS.items()})
GET = ("Cache.get", "/job/cache.py")
STACKS = [[GET], [GET, ("fetch", "/job/cache.py")], [("work", "/job/app.py")]]


def judge(held: tuple[bool, str | None]) -> Verdict:
    """Judge 10 s of four threads: each waits for 7 s, has the lock for 2 s, and works for one."""
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
        for thread in range(4):
            times = [(0, True, "lock", 7), (1, *held, 2), (2, False, None, 1)]
            for stack, idle, wait, wall_s in times:
                connection.execute(
                    "INSERT INTO python.stack_sample VALUES"
                    " ('alpha', 7, ?, ?, NULL, FALSE, ?, ?, ?, 0, 0, 100)",
                    [thread, stack, idle, wait, wall_s * 10**9],
                )
        found = connection.execute(lock_fight.SQL.format(piece="0", inside="TRUE", **LIMITS))
        make = namedtuple("Found", [column[0] for column in found.description])
        (verdict,) = lock_fight.judge([make(*row) for row in found.fetchall()], LIMITS)
    return verdict


@pytest.mark.parametrize(
    ("held", "words"),
    [((True, "network"), "waits for the network"), ((False, None), "works")],
)
def test_what_is_done_while_the_lock_is_held_is_told(
    held: tuple[bool, str | None], words: str
) -> None:
    found = judge(held)
    assert found.fired and found.line == "/job/cache.py:0 in Cache.get"
    assert found.evidence["whoever_is_in"] == f"{words} at /job/cache.py:10 in fetch"
