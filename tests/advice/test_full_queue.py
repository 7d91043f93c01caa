"""Threads that wait for room in a queue: on samples made by hand."""

from __future__ import annotations

import duckdb
import pytest

from sonde.advice.rules import full_queue
from sonde.advice.rules._code import in_python
from sonde.advice.verdict import Verdict
from support.handmade_samples import Sample, judge_samples

QUEUE = "/lib/python3.12/queue.py"
PUT = [("read", "/job/logs.py"), ("Queue.put", QUEUE)]
GET = [("write", "/job/logs.py"), ("Queue.get", QUEUE)]
STORE = [("write", "/job/logs.py"), ("store", "/job/disk.py")]
STACKS = [PUT, GET, STORE, [("read", "/job/logs.py")]]


def judge(put_s: float, store_s: float, store_wait: str | None = None) -> Verdict:
    """Judge 10 s of two threads that put and one that takes, for so many seconds each."""
    samples = [
        Sample(8, 0, put_s, "lock"), Sample(8, 3, 10 - put_s), Sample(9, 0, put_s, "lock"),
        Sample(9, 3, 10 - put_s), Sample(10, 1, 10 - store_s, "lock"),
        Sample(10, 2, store_s, store_wait),
    ]  # fmt: skip
    return judge_samples(full_queue, STACKS, samples)


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


def test_a_file_of_the_programs_own_that_is_called_queue_is_none_of_pythons() -> None:
    own = [
        [(func, file.replace(QUEUE, "/job/queue.py")) for func, file in stack] for stack in STACKS
    ]
    samples = [Sample(8, 0, 9.0, "lock"), Sample(8, 3, 1.0), Sample(10, 2, 9.9)]
    assert judge_samples(full_queue, STACKS, samples).fired
    assert not judge_samples(full_queue, own, samples).fired


def test_pythons_own_library_may_lie_below_lib64() -> None:
    """As on Fedora and its relatives; a program may have a file with the same name."""

    def is_in_python(file: str) -> bool:
        row = duckdb.execute(f"SELECT {in_python('queue.py')} FROM (SELECT ? AS file)", [file])
        return bool(row.fetchone()[0])

    assert is_in_python("/usr/lib64/python3.12/queue.py")
    assert is_in_python("/usr/lib/python3.12/queue.py")
    assert not is_in_python("/home/me/shop/queue.py")
