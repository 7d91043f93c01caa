"""How long a wait of asyncio's tasks lasts, told by how many end between two looks."""

from __future__ import annotations

import pytest

from sonde.analysis.awaits import Await, _find_place
from sonde.analysis.code_names import find_owner

MINE = ("fetch", "/home/me/app.py", 4)
SLEEP = ("sleep", "/usr/lib/python3.11/asyncio/tasks.py", 649)
QUEUE = ("Queue.get", "/usr/lib/python3.11/asyncio/queues.py", 158)


def test_short_waits_are_told_by_those_that_end_soon() -> None:
    one = Await("f", "a.py", 1, "x", soon_ended=20, soon_ns=2e9, later=90, later_ended=88)
    assert one.wait_ns == 1e8 and one.ended == 20


def test_long_waits_are_told_by_those_that_end_later() -> None:
    one = Await("f", "a.py", 1, "x", soon_ns=2e9, later=100, later_ended=10, later_ns=50e9)
    assert one.wait_ns == 5e9 and one.ended == 10


def test_a_wait_that_never_ends_has_no_length() -> None:
    assert Await("f", "a.py", 1, "x", soon_ns=2e9, later=5, later_ns=2e9).wait_ns is None


@pytest.mark.parametrize(
    ("frames", "awaited"),
    [
        ([SLEEP, MINE], "asyncio.sleep"),
        ([MINE], "a future"),
        ([QUEUE, MINE], None),
        ([SLEEP], None),
    ],
)
def test_the_place_is_in_the_users_own_code_and_waiting_for_work_is_none(frames, awaited) -> None:
    found = _find_place(frames, find_owner)
    assert (found and found.awaited) == awaited
    assert found is None or (found.func, found.line) == ("fetch", 4)
