"""A process stands still only if nothing in it can move, and a program at rest does not."""

from __future__ import annotations

import pytest

from sonde.analysis.standstill import (
    ALONE,
    DEADLOCK,
    GIL,
    LOCKS,
    OUTSIDE,
    StandingThread,
    find_standstill,
)

PID = 100
PY = "/usr/lib/python3.11"
MAIN = ("main", "/job/app.py", 9)
TAKE = [("pay", "/job/app.py", 5), MAIN]
JOIN = [("Thread.join", f"{PY}/threading.py", 1112), MAIN]
GET = [("Condition.wait", f"{PY}/threading.py", 320), ("Queue.get", f"{PY}/queue.py", 171), MAIN]
EVENT = [("Condition.wait", f"{PY}/threading.py", 320), ("Event.wait", f"{PY}/threading.py", 1), MAIN]  # fmt: skip
ACCEPT = [("socket.accept", f"{PY}/socket.py", 294), MAIN]
HANDLER = [("Handler.acquire", f"{PY}/logging/__init__.py", 922), MAIN]
BACKWARD = [("backward", "/v/site-packages/torch/autograd/graph.py", 823), MAIN]
WORKER = [
    ("SemLock.__enter__", f"{PY}/multiprocessing/synchronize.py", 95),
    ("worker", f"{PY}/multiprocessing/pool.py", 114),
    ("BaseProcess.run", f"{PY}/multiprocessing/process.py", 108),
    MAIN,
]


def stand(thread: int, wait: str | None, frames: list, stood_s: float = 20.0, **facts: bool):
    idle, gil = facts.get("is_idle", True), facts.get("has_gil", False)
    return StandingThread(thread, None, stood_s, idle, gil, wait, frames)


@pytest.mark.parametrize(
    ("kind", "threads", "has_native"),
    [
        (GIL, [stand(PID, "sleep", TAKE, has_gil=True), stand(2, "gil", JOIN)], True),
        (DEADLOCK, [stand(PID, "lock", JOIN), stand(2, "lock", TAKE), stand(3, "lock", TAKE)], True),
        (DEADLOCK, [stand(PID, "lock", TAKE)], False),
        (DEADLOCK, [stand(PID, "lock", HANDLER)], False),
        (LOCKS, [stand(PID, "sleep", [MAIN], 0.5), stand(2, "lock", TAKE), stand(3, "lock", TAKE)], True),
        (ALONE, [stand(PID, "lock", GET)], False),
        (OUTSIDE, [stand(PID, "network", TAKE), stand(2, "lock", GET)], False),
    ],
    ids=["a call holds the GIL", "locks", "a lock of the parent", "a lock of logging",
         "locks, and one rests", "a queue of nobody", "a socket"],
)  # fmt: skip
def test_what_stands_still_is_told(kind: str, threads: list, has_native: bool) -> None:
    found = find_standstill(threads, PID, 5, has_native=has_native)
    assert found is not None and found.kind == kind
    assert found.stood_s == 20 and "20.0s" in found.summary and "/job/app.py" in found.sentence


@pytest.mark.parametrize(
    ("threads", "has_native"),
    [
        ([stand(PID, "lock", TAKE, 1.0)], False),
        ([stand(PID, None, TAKE, is_idle=False), stand(2, "lock", TAKE)], False),
        ([stand(PID, "network", ACCEPT)], False),
        ([stand(PID, "poll", [MAIN]), stand(2, "lock", GET)], False),
        ([stand(PID, "lock", EVENT)], False),
        ([stand(PID, "sleep", [MAIN])], False),
        ([stand(PID, "shared_lock", WORKER)], False),
        ([stand(PID, "lock", BACKWARD)], True),
        ([stand(PID, "lock", GET)], True),
    ],
    ids=["it was only a moment", "somebody works", "a server", "an event loop", "a daemon",
         "a sleep", "a worker without work", "native threads work", "a native thread may put"],
)  # fmt: skip
def test_what_rests_or_may_move_is_not(threads: list, has_native: bool) -> None:
    assert find_standstill(threads, PID, 5, has_native=has_native) is None
