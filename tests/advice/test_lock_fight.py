"""Threads that wait for a lock: on samples made by hand."""

from __future__ import annotations

import pytest

from sonde.advice.rules import lock_fight
from sonde.advice.verdict import Verdict
from support.handmade_samples import Sample, judge_samples

GET = ("Cache.get", "/job/cache.py")
STACKS = [[GET], [GET, ("fetch", "/job/cache.py")], [("work", "/job/app.py")]]


def judge(held: tuple[bool, str | None]) -> Verdict:
    """Judge 10 s of four threads: each waits for 7 s, has the lock for 2 s, and works for one."""
    is_idle, wait = held
    samples = [
        one for thread in range(4)
        for one in (Sample(thread, 0, 7, "lock"), Sample(thread, 1, 2, wait, is_idle=is_idle),
                    Sample(thread, 2, 1))
    ]  # fmt: skip
    return judge_samples(lock_fight, STACKS, samples)


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


PROPERTY = ("cached_property.__get__", "/opt/py/lib/python3.11/functools.py")


@pytest.mark.parametrize(
    ("leaf", "is_told"), [(PROPERTY, True), ((PROPERTY[0], "/job/a.py"), False)]
)
def test_the_lock_of_a_cached_property_is_one_of_the_program(leaf, is_told: bool) -> None:
    stacks = [[GET, leaf], [GET, PROPERTY, ("fetch", "/job/cache.py")], [("work", "/job/app.py")]]
    samples = [
        one for thread in range(4)
        for one in (Sample(thread, 0, 7, "lock"), Sample(thread, 1, 2, "network"),
                    Sample(thread, 2, 1))
    ]  # fmt: skip
    found = judge_samples(lock_fight, stacks, samples)
    assert found.fired
    assert ("cached_property" in found.title) is is_told
    if is_told:
        assert found.evidence["whoever_is_in"].startswith("waits for the network at /job/cache.py")
