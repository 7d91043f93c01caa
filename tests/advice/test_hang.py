"""Why nothing moves, across processes: on rows as the rule's query returns them."""

from __future__ import annotations

from collections import namedtuple

from sonde.advice.rules import hang
from sonde.advice.verdict import Limits, Verdict

LIMITS = Limits({name: limit.default for name, limit in hang.LIMITS.items()})
LIBRARY = "/usr/lib/python3.11"
USUAL = {
    "piece": 0, "host": "alpha", "pid": 7, "rank": None, "thread": 7, "name": "MainThread", "samples": 900,
    "wait": "child", "has_gil": False, "idle_pct": 100.0, "stood_s": 20.0, "end_ns": 60 * 10**9,
    "funcs": ["Popen.wait", "run_tool"], "files": [f"{LIBRARY}/subprocess.py", "/job/app.py"], "lines": [1, 9],
    "lock": None, "has_ended": False, "cpu_pct": 0.5, "kernel_threads": 2, "usual_s": None, "step": None,
    "silent_s": None, "below": None,
}  # fmt: skip
Row = namedtuple("Row", USUAL)
CHILD = {"process": 8, "parent": 7, "name": "tool", "waits_in": "anon_pipe_write"}
FEEDS = {
    "wait": "pipe", "thread": 9, "name": "QueueFeederThread", "funcs": ["Connection._send", "Queue._feed"],
    "files": [f"{LIBRARY}/multiprocessing/connection.py", f"{LIBRARY}/multiprocessing/queues.py"],
}  # fmt: skip
HELD = {
    "t_ns": 59 * 10**9, "thread": 8, "since_ns": 40 * 10**9, "lock": 1, "kind": "thread", "holder": 9,
    "holder_stack": 1, "taken_func": None, "taken_file": None, "taken_lineno": None,
}  # fmt: skip
ENDS = {
    "wait": "lock", "thread": 8, "funcs": ["Thread.join", "Queue._finalize_join"], "lock": HELD,
    "files": [f"{LIBRARY}/threading.py", f"{LIBRARY}/multiprocessing/queues.py"],
}  # fmt: skip


def judge(*changes: dict[str, object]) -> list[Verdict]:
    return list(hang.judge([Row(**USUAL | one) for one in changes], LIMITS))


def test_a_child_that_is_not_recorded_and_writes_into_a_full_pipe_is_named() -> None:
    (found,) = judge({"below": [CHILD]})
    assert found.fired and found.severity == "warning"
    assert "which waits for room in a pipe (tool, pid 8)" in found.title
    assert "communicate" in found.todo and "app.py:9" in found.line


def test_a_child_of_which_nothing_is_known_is_no_cause() -> None:
    (found,) = judge({"below": [{**CHILD, "waits_in": None}]})
    assert found.title.endswith("waits for a child process to end") and found.severity == "info"
    (found,) = judge({"below": [{**CHILD, "parent": 1}]})  # nobody waits for this one
    assert "pipe" not in found.title


def test_workers_whose_queue_nobody_empties_are_told_with_who_waits_for_them() -> None:
    below = [{**CHILD, "waits_in": None, "name": "python"}]
    parent, child = judge({"below": below}, {"pid": 8, **ENDS}, {"pid": 8, **FEEDS})
    assert parent.fired and child.fired and parent.title == child.title
    assert "another process to take the items of its queue (python, pid 8)" in parent.title
    assert (parent.severity, parent.line) == ("warning", child.line)


def test_a_thread_that_rests_at_its_queue_holds_up_nobody() -> None:
    child = {"pid": 8, "kernel_threads": 9}  # a native one may wake it
    rests = {**FEEDS, "wait": "lock", "funcs": ["Condition.wait", "Queue._feed"]}
    parent, child = judge({"below": [CHILD]}, {**ENDS, **child}, {**rests, **child})
    assert not parent.fired and not child.fired  # for all that is known, its work goes on


def test_an_event_loop_that_waits_for_its_own_answer_is_told() -> None:
    frames = [
        ("Future.result", "concurrent/futures/_base.py"),
        ("read", ""),
        ("Handle._run", "asyncio/events.py"),
    ]
    (found,) = judge({
        "wait": "lock", "funcs": [func for func, _ in frames], "lines": [1, 2, 3],
        "files": [f"{LIBRARY}/{file}" if file else "/job/app.py" for _, file in frames],
    })  # fmt: skip
    assert "no thread is left that could bring it: this one runs the event loop" in found.title
    assert "await" in found.todo


def test_of_several_children_none_is_named_unless_one_writes_into_a_full_pipe() -> None:
    """Multiprocessing keeps a child that only rests, and reads a pipe for ever."""
    tracker = {**CHILD, "process": 9, "name": "python", "waits_in": "pipe_read"}
    script = {**CHILD, "waits_in": "do_wait"}
    titles = [
        judge({"below": below})[0].title
        for below in ([tracker, script], [script], [tracker, {**script, "waits_in": "pipe_write"}])
    ]
    assert ["pid 8" in title for title in titles] == [False, True, True]
    assert "pid 9" not in "".join(titles)
