"""Threads that wait for one of few: on samples made by hand."""

from __future__ import annotations

import pytest

from sonde.advice.rules import scarce_pool
from sonde.advice.verdict import Verdict
from support.handmade_samples import Sample, judge_samples

LIBRARY = "/lib/python3.12"
TASK = ("_worker", f"{LIBRARY}/concurrent/futures/thread.py")
GET, RECV = ("Queue.get", f"{LIBRARY}/queue.py"), ("find", "/job/users.py")
RUN, HANDLE = ("run", "/job/app.py"), ("handle", "/job/app.py")
ACQUIRE, NEXT_JOB = ("acquire", "/job/pool.py"), ("next_job", "/job/app.py")


def judge(
    waits: list[tuple[str, str]], uses: list[tuple[str, str]], using_s: float, more_s: float = 0.0
) -> Verdict:
    """Judge 10 s of four threads, which wait and use what they waited for, for so long in all, and
    of a fifth one that has it for `more_s`; the stacks are given root first."""
    users = [(at, using_s / 4) for at in range(8, 12)] + [(12, more_s)] * (more_s > 0)
    samples = []
    for thread, used_s in users:
        waited_s = 10 - used_s if thread < 12 else 0.1
        samples += [Sample(thread, 0, waited_s, "lock"), Sample(thread, 1, used_s, "network")]
    return judge_samples(scarce_pool, (waits, uses), samples)


@pytest.mark.parametrize(
    ("waits", "uses"),
    [
        ([TASK, ACQUIRE, GET], [TASK, RECV]),  # a pool's thread that is here has a task
        ([RUN, HANDLE, ACQUIRE, GET], [RUN, HANDLE, RECV]),  # the same function uses it
    ],
)
def test_threads_that_take_turns_with_one_connection_are_a_warning(
    waits: list[tuple[str, str]], uses: list[tuple[str, str]]
) -> None:
    found = judge(waits, uses, 9.5)
    assert found.fired and found.severity == "warning"
    assert found.line == "/job/pool.py:1 in acquire"
    assert found.evidence["waiting_threads"] == 4
    assert found.evidence["in_use_at_a_time"] == pytest.approx(0.95, abs=0.03)
    assert found.evidence["each_then_waits_for"] == "the network"


def test_a_thread_that_gets_the_connection_nearly_always_hides_nothing() -> None:
    found = judge([TASK, ACQUIRE, GET], [TASK, RECV], 1.0, more_s=8.5)
    assert found.fired and found.evidence["in_use_at_a_time"] == pytest.approx(0.95, abs=0.03)


def test_consumers_without_an_item_are_not() -> None:
    assert not judge([RUN, NEXT_JOB, GET], [RUN, HANDLE, RECV], 9.5).fired


@pytest.mark.parametrize("using_s", [1.0, 26.0])
def test_nor_are_threads_that_wait_for_something_else(using_s: float) -> None:
    """Nobody has what they wait for most of the time, or there is enough of it."""
    assert not judge([TASK, ACQUIRE, GET], [TASK, RECV], using_s).fired
