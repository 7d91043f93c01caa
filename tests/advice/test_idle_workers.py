"""Workers of a pool without a task, while one has: on samples made by hand."""

from __future__ import annotations

from sonde.advice.rules import idle_workers
from sonde.advice.verdict import Verdict
from support.handmade_samples import Sample, judge_samples

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
        now = [(10 + worker, TASK if worker in busy else REST) for worker in range(workers)]
        if tenth < asking_pct / 100 * len(turns):
            now.append((1, ASKS))
        samples += [
            Sample(pid, stack, 0.99, None if stack == TASK else "pipe", pid=pid, end_s=tenth + 1)
            for pid, stack in now
        ]
    return judge_samples(idle_workers, STACKS, samples, piece_s="10")


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
