"""Processes that wait for one lock: on samples made by hand."""

from __future__ import annotations

import pytest

from sonde.advice.rules import process_lock
from sonde.advice.verdict import Verdict
from support.handmade_samples import Sample, judge_samples

SYNCHRONIZE = "/lib/python3.12/multiprocessing/synchronize.py"
QUEUES = "/lib/python3.12/multiprocessing/queues.py"
EXPORT = ("export", "/job/app.py")
STACKS = [
    [EXPORT, ("take", "/job/index.py")],
    [EXPORT, ("Lock.__enter__", SYNCHRONIZE)],
    [EXPORT, ("Queue.get", QUEUES)],
    [EXPORT, ("upload", "/job/net.py")],
    # A forked worker of a pool, which waits for its next task: its parent's frames are around it.
    [EXPORT, ("BaseProcess._bootstrap", "/lib/python3.12/multiprocessing/process.py"),
     ("Queue.get", QUEUES), ("Lock.__enter__", SYNCHRONIZE)],
]  # fmt: skip
FLOCK, LOCK = "fcntl.flock", "_multiprocessing.SemLock.__enter__"


def judge(stack: int, call: str, waiting_s: float, processes: int = 4) -> Verdict:
    """Judge 10 s of processes that wait at one stack for so long, and else for a network."""
    samples = [
        sample
        for pid in range(10, 10 + processes)
        for sample in (
            Sample(pid, stack, waiting_s, "shared_lock", call, pid=pid),
            Sample(pid, 3, 10 - waiting_s, "network", pid=pid),
        )
    ]
    return judge_samples(process_lock, STACKS, samples)


@pytest.mark.parametrize(
    ("stack", "call", "line"),
    [(0, FLOCK, "/job/index.py:0 in take"), (1, LOCK, "/job/app.py:11 in export")],
)
def test_processes_that_run_one_after_the_other_for_a_lock_are_a_warning(
    stack: int, call: str, line: str
) -> None:
    found = judge(stack, call, 7.5)
    assert (found.fired, found.severity, found.line) == (True, "warning", line)
    assert found.evidence["processes"] == 4
    assert found.evidence["not_waiting_at_a_time"] == pytest.approx(1)
    assert found.evidence["otherwise"] == "waits for the network at /job/net.py:30 in upload"


def test_processes_of_which_several_work_at_a_time_are_only_mentioned() -> None:
    assert judge(0, FLOCK, 4.0).severity == "info"


@pytest.mark.parametrize(
    ("stack", "call", "waiting_s", "processes"),
    [(0, FLOCK, 1.0, 4), (0, FLOCK, 7.5, 1), (2, LOCK, 7.5, 4), (4, LOCK, 7.5, 4)],
)
def test_little_waiting_one_process_or_a_queue_without_items_is_no_fight(
    stack: int, call: str, waiting_s: float, processes: int
) -> None:
    assert not judge(stack, call, waiting_s, processes).fired
