"""Rules about threads that wait for each other: on rows as their queries return them."""

from __future__ import annotations

from collections import namedtuple

import pytest

from sonde.advice.rules import (
    gc_pauses,
    gil_bound,
    input_bound,
    narrow_pool,
    pool_overhead,
    sleeping_helper,
    stalled_waits,
)
from sonde.advice.verdict import Limits, Verdict
from support.handmade_samples import judge_rows

STALLED = {
    "piece": 0, "host": "alpha", "pid": 7, "threads": 2, "readings": 1000, "alive_s": 10.0,
    "stalled_pct": 95.0, "thread": 7, "file": "/job/box.py", "lineno": 9, "func": "ask",
    "is_task": False, "all_s": 9.5, "lengths": [0.5] * 19,
}  # fmt: skip
Stalled = namedtuple("Stalled", STALLED)
CALL = {"call": "builtins.sorted", "wait": None, "longest_ns": 4e8, "kept_threads": 3, "kept_pct": 80.0,
        "file": "/job/big.py", "lineno": 3, "func": "order"}  # fmt: skip
GIL = {
    "piece": 0, "pid": 7, "readings": 1000, "held_pct": 95.0, "threads": 1, "waiting_pct": 0.0,
    "main_pct": 0.0, "file": "/job/app.py", "lineno": 1, "func": "main", "long_call": CALL,
    "calls_pct": 90.0,
}  # fmt: skip
Gil = namedtuple("Gil", GIL)


def judge(**change: object) -> Verdict:
    limits = Limits({name: limit.default for name, limit in stalled_waits.LIMITS.items()})
    (verdict,) = stalled_waits.judge([Stalled(**STALLED | change)], limits)
    return verdict


def test_waits_that_always_end_by_their_timeout_are_mentioned() -> None:
    found = judge()
    assert (found.fired, found.severity) == (True, "info")
    assert found.line == "/job/box.py:9 in ask"
    assert "timeout" in found.title


def test_tasks_that_wait_for_tasks_of_their_pool_are_a_warning() -> None:
    found = judge(is_task=True, lengths=[2.0, 2.0, 5.5])
    assert (found.fired, found.severity) == (True, "warning")
    assert "same pool" in found.title


@pytest.mark.parametrize(
    "change",
    [
        {"stalled_pct": 5.0, "is_task": True},  # somebody works meanwhile
        {"stalled_pct": -300.0},
        {"all_s": 1.0},
        {"lengths": [0.1, 0.9, 0.3, 1.5, 0.2, 4.0]},  # somebody wakes it
        {"lengths": [0.01] * 900},
        {"lengths": [5.0, 5.0]},  # too few to say
        {"thread": None, "is_task": None, "all_s": None, "lengths": None},
    ],
)
def test_other_waits_are_not(change: dict[str, object]) -> None:
    assert not judge(**change).fired


@pytest.mark.parametrize(
    ("change", "told"),
    [({}, True), ({"calls_pct": 5.0}, False), ({"calls_pct": None, "long_call": None}, False)],
)
def test_a_call_that_keeps_the_gil_is_told_with_its_line(
    change: dict[str, object], told: bool
) -> None:
    limits = Limits({name: limit.default for name, limit in gil_bound.LIMITS.items()})
    (found,) = gil_bound.judge([Gil(**GIL | change)], limits)
    assert found.fired is told
    assert not told or found.line == "/job/big.py:3 in order"


def test_a_call_that_waits_and_keeps_the_gil_is_told_apart() -> None:
    limits = Limits({name: limit.default for name, limit in gil_bound.LIMITS.items()})
    resting = {**CALL, "call": None, "wait": "network"}
    (found,) = gil_bound.judge([Gil(**GIL | {"long_call": resting})], limits)
    assert found.fired and "native call waits" in found.title
    assert found.evidence["waits_for"] == "the network"
    assert "call" not in found.evidence


@pytest.mark.parametrize(("call", "told"), [("list.sort", True), ("_thread.lock.release", False)])
def test_waking_many_threads_at_one_line_is_no_call_that_keeps_the_gil(
    call: str, told: bool
) -> None:
    stack = {"host": "alpha", "pid": 7, "queue_ns": 0}
    frames = [
        {"stack": at, "depth": 0, "func": func, "file": "/job/app.py", "lineno": 3}
        for at, func in enumerate(("put", "get"))
    ]
    samples = [
        {**stack, "thread": thread, "stack": at, "t_ns": t * 10**9, "samples": 100, "gil": at == 0,
         "idle": at == 1, "wait": "gil" if at else None, "wall_ns": 10**9, "cpu_ns": (1 - at) * 10**9,
         "call": None if at else call}
        for thread, at in ((7, 0), (8, 1))
        for t in range(10)
    ]  # fmt: skip
    tables = {"python.frame": frames, "python.stack_sample": samples}
    found = judge_rows(gil_bound, tables)
    assert any(one.fired for one in found) is told


LOADING = {
    "piece": 0, "rank": None, "steps": 100, "step_s": 10.0, "wait_s": 3.0, "dataset": "Examples",
    "workers": 1, "prefetch_factor": 8, "cores": 2.0, "fetch_s": 2.0, "alive_s": 10.0, "cpu_s": 1.9,
    "idle_s": 0.0, "handled_s": 0.0, "hottest": 1.0, "started": 0, "queue_pct": 0.0, "doing": None, "file": None, "lineno": None,
    "func": None, "sampler_s": 0.1, "chooser": {"file": "/job/data.py", "lineno": 9, "func": "draw"},
}  # fmt: skip
Loading = namedtuple("Loading", LOADING)


@pytest.mark.parametrize(("cpu_s", "words"), [(1.9, "prefetch"), (0.5, "that others use")])
def test_workers_that_rest_are_late_where_others_have_the_processors(
    cpu_s: float, words: str
) -> None:
    limits = Limits({name: limit.default for name, limit in input_bound.LIMITS.items()})
    (found,) = input_bound.judge([Loading(**LOADING | {"cpu_s": cpu_s})], limits)
    assert found.fired and words in found.title
    assert (found.lost_pct is None) == (words != "prefetch")  # mentioned, not warned of


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_the_loop_waits_for_is_named_however_many_workers_there_are(
    workers: int,
) -> None:
    limits = Limits({name: limit.default for name, limit in input_bound.LIMITS.items()})
    change = {"sampler_s": 2.5, "workers": workers}
    (found,) = input_bound.judge([Loading(**LOADING | change)], limits)
    assert found.fired and "sampler" in found.title
    assert found.line == "/job/data.py:9 in draw"


def test_what_nearly_all_of_the_loading_is_comes_before_more_workers() -> None:
    limits = Limits({name: limit.default for name, limit in input_bound.LIMITS.items()})
    doing = {
        "called": "torch._C._VariableFunctionsClass.tensor",
        "in_file": None,
        "func": "Data.collate",
        "s": 1.8,
    }
    (found,) = input_bound.judge([Loading(**LOADING | {"workers": 0, "doing": doing})], limits)
    assert "mostly by torch.tensor (arrays from Python lists) in collate" in found.title
    assert found.todo.startswith("lists are read number by number") and "num_workers" in found.todo
    (found,) = input_bound.judge(
        [Loading(**LOADING | {"workers": 0, "doing": {**doing, "s": 0.9}})], limits
    )
    assert "mostly" not in found.title and found.todo.startswith("give the DataLoader")
    asleep = {"called": "time.sleep", "in_file": None, "func": "Data.decode", "s": 1.8}
    change = {"workers": 0, "doing": asleep, "cpu_s": 0.1, "idle_s": 1.8}
    (found,) = input_bound.judge([Loading(**LOADING | change)], limits)
    assert found.todo.startswith("a sleep is time in which nothing happens")


@pytest.mark.parametrize(
    ("handled_s", "workers", "is_told"), [(1.5, 0, True), (0.9, 0, False), (1.5, 1, False)]
)
def test_a_loop_that_takes_examples_from_memory_one_by_one_is_only_mentioned(
    handled_s: float, workers: int, is_told: bool
) -> None:
    limits = Limits({name: limit.default for name, limit in input_bound.LIMITS.items()})
    change = {"handled_s": handled_s, "workers": workers}
    (found,) = input_bound.judge([Loading(**LOADING | change)], limits)
    assert found.fired and ("by itself" in found.title) == is_told
    assert (found.lost_pct is None) == is_told


# ---- pools of processes ------------------------------------------------------------------------------

POOL = {
    "piece": 0, "host": "alpha", "task_ns": 1e9, "moving_ns": 6e9, "pickling_ns": 5e9,
    "readings": 1000, "piece_s": 10.0, "moved_bytes": 1e6, "file": "/job/score.py", "lineno": 16,
    "func": "score_all",
}  # fmt: skip
Pool = namedtuple("Pool", POOL)


def judge_pool(**change: object) -> Verdict:
    limits = Limits({name: limit.default for name, limit in pool_overhead.LIMITS.items()})
    (verdict,) = pool_overhead.judge([Pool(**POOL | change)], limits)
    return verdict


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({}, "is large"),
        ({"pickling_ns": 1e9}, "too small"),
        ({"pickling_ns": 1e9, "moved_bytes": None}, "too small"),
        ({"pickling_ns": 1e9, "moved_bytes": 4e9}, "is large"),  # pipes take long, too
    ],
)
def test_a_pool_that_hands_over_more_than_it_works_is_a_warning(
    change: dict[str, object], cause: str
) -> None:
    found = judge_pool(**change)
    assert (found.fired, found.severity) == (True, "warning")
    assert found.line == "/job/score.py:16 in score_all"
    assert cause in found.title


@pytest.mark.parametrize(
    "change",
    [
        {"task_ns": 9e9},  # the work takes longer
        {"moving_ns": 1e9, "task_ns": 0.0},  # a pool that rests
        {"moving_ns": 0.0, "task_ns": 0.0, "pickling_ns": 0.0},
    ],
)
def test_another_pool_is_not(change: dict[str, object]) -> None:
    assert not judge_pool(**change).fired


NARROW = {
    "piece": 0, "pid": 7, "threads": 1, "readings": 1000, "asking_pct": 95.0, "working_pct": 99.0,
    "waiting_pct": 98.0, "wait": "network", "file": "/job/fetch.py", "lineno": 14, "func": "batch",
}  # fmt: skip
Narrow = namedtuple("Narrow", NARROW)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, True),
        ({"threads": 2}, False),
        ({"asking_pct": 20.0}, False),  # the main thread has other work
        ({"working_pct": 30.0}, False),  # it is the main thread that is late
        ({"waiting_pct": 10.0}, False),  # it works: more threads would wait for the GIL
    ],
)
def test_a_pool_of_one_thread_that_waits_is_a_warning(
    change: dict[str, object], told: bool
) -> None:
    limits = Limits({name: limit.default for name, limit in narrow_pool.LIMITS.items()})
    (found,) = narrow_pool.judge([Narrow(**NARROW | change)], limits)
    assert found.fired is told
    assert (found.severity, found.line) == ("warning", "/job/fetch.py:14 in batch")
    assert found.evidence["mostly_for"] == "the network"


ASLEEP = {
    "piece": 0, "pid": 7, "readings": 1000, "waits": 40, "sleeps": 40, "waiting_pct": 98.0,
    "sleeping_pct": 97.0, "others_pct": 0.0, "file": "/job/queue.py", "lineno": 11, "func": "look",
}  # fmt: skip
Asleep = namedtuple("Asleep", ASLEEP)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, True),
        ({"waits": 1}, False),  # it waits for the end of a thread
        ({"sleeps": 400}, False),  # it looks ten times for each answer
        ({"waiting_pct": 30.0}, False),
        ({"sleeping_pct": 30.0}, False),
        ({"others_pct": 60.0}, False),  # somebody works meanwhile
    ],
)
def test_a_thread_that_sleeps_while_the_main_thread_waits_for_it_is_mentioned(
    change: dict[str, object], told: bool
) -> None:
    limits = Limits({name: limit.default for name, limit in sleeping_helper.LIMITS.items()})
    (found,) = sleeping_helper.judge([Asleep(**ASLEEP | change)], limits)
    assert (found.fired, found.severity) == (told, "info")
    assert found.line == "/job/queue.py:11 in look"


GC = {
    "piece": 0, "pid": 7, "pauses": 40, "all_s": 5.0, "full_s": 5.0, "long": 20, "longest_ns": 2e8,
    "collected": 0.0, "piece_s": 10.0, "file": "/job/page.py", "lineno": 4, "func": "clean",
    "asked_pct": 95.0,
}  # fmt: skip
Gc = namedtuple("Gc", GC)


@pytest.mark.parametrize(("asked_pct", "cause"), [(95.0, "itself calls"), (20.0, "")])
def test_collections_that_the_program_asks_for_are_told_apart(asked_pct: float, cause: str) -> None:
    limits = Limits({name: limit.default for name, limit in gc_pauses.LIMITS.items()})
    (found,) = gc_pauses.judge([Gc(**GC | {"asked_pct": asked_pct})], limits)
    assert found.fired and cause in found.title and bool(found.title) == bool(cause)
    assert found.line == "/job/page.py:4 in clean"


@pytest.mark.parametrize(
    ("change", "most"),
    [
        ({"full_s": 2.8}, "critical"),  # asked for
        ({"full_s": 2.8, "asked_pct": 0.0}, "info"),  # as it costs whoever builds many objects
        ({"full_s": 7.0, "asked_pct": 0.0}, "critical"),
    ],
)
def test_collections_that_building_objects_takes_are_only_mentioned(
    change: dict[str, object], most: str
) -> None:
    limits = Limits({name: limit.default for name, limit in gc_pauses.LIMITS.items()})
    (found,) = gc_pauses.judge([Gc(**GC | change)], limits)
    assert found.fired and found.most == most
