"""An event loop that never rests: on samples made by hand."""

from __future__ import annotations

import pytest

from sonde.advice.rules import spinning_loop
from sonde.advice.verdict import Verdict
from support.handmade_samples import judge_rows

LIBRARY = "/usr/lib/python3.12"
TURN = [("main", "/job/app.py"), ("BaseEventLoop._run_once", f"{LIBRARY}/asyncio/base_events.py")]
CALL = [
    *TURN,
    ("Handle._run", f"{LIBRARY}/asyncio/events.py"),
    ("Device.on_data", "/job/device.py"),
]
PARSE = [*CALL, ("loads", f"{LIBRARY}/json/__init__.py")]
S = 10**9


def judge(turn_s: float, parse_s: float, callbacks: int = 600_000, idle_s: float = 0.0) -> Verdict:
    """Judge 10 s of a loop that turns, runs a callback for a tenth of a second, and parses in it."""
    frames = [
        {"stack": stack, "depth": depth, "func": func, "file": file, "lineno": 10 * stack + depth}
        for stack, one in enumerate((TURN, CALL, PARSE))
        for depth, (func, file) in enumerate(reversed(one))
    ]
    samples = [
        {"thread": 7, "stack": stack, "wall_ns": round(s * S), "cpu_ns": round(s * S), "queue_ns": 0, "idle": False}
        for stack, s in enumerate((turn_s, 0.1, parse_s))
    ]  # fmt: skip
    loop = {"thread": 7, "wall_ns": 10 * S, "idle_ns": round(idle_s * S), "callbacks": callbacks}
    tables = {"python.frame": frames, "python.stack_sample": samples, "python.event_loop": [loop]}
    (verdict,) = judge_rows(spinning_loop, tables)
    return verdict


def test_a_loop_that_calls_a_callback_for_ever_is_told_with_the_callback() -> None:
    found = judge(9.9, 0.0)
    assert (found.fired, found.severity) == (True, "warning")
    assert "Device.on_data" in found.title and found.line == "/job/device.py:10 in Device.on_data"


@pytest.mark.parametrize(
    "changes",
    [
        {"turn_s": 4.0, "parse_s": 5.9},  # a server with much to do
        {"turn_s": 2.0, "parse_s": 0.0, "idle_s": 7.5},  # one that rests
        {"turn_s": 9.9, "parse_s": 0.0, "callbacks": 9000},  # each of them takes its time
    ],
)
def test_a_loop_with_work_or_with_rest_does_not_spin(changes: dict[str, float]) -> None:
    assert not judge(**changes).fired
