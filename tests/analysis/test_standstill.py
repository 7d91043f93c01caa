"""A process stands still only if nothing in it can move, and a program at rest does not."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

import sonde
from conftest import wait_for
from sonde.analysis import standstill
from sonde.analysis.standstill import (
    ALONE,
    CIRCLE,
    DEADLOCK,
    GIL,
    LOCKS,
    OUTSIDE,
    StandingThread,
    add_lock,
    find_standstill,
)
from sonde.session import list_sessions, stack_table
from sonde.session.held_lock import HeldLock

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


def hold(one: StandingThread, holder: int | None, seen_s: float = 3.0) -> StandingThread:
    """Return a thread that was seen to wait for a lock of `holder`, so many seconds ago."""
    row = {"thread": one.thread, "t_ns": -seen_s * 1e9, "since_ns": 0, "lock": 1, "kind": "Lock",
           "holder": holder, "taken_func": "f", "taken_file": "/job/app.py", "taken_lineno": 7}  # fmt: skip
    return add_lock(one, HeldLock(row), 0)


def stand(thread: int, wait: str | None, frames: list, stood_s: float = 20.0, **facts: bool):
    idle, gil = facts.get("is_idle", True), facts.get("has_gil", False)
    return StandingThread(thread, None, stood_s, idle, gil, wait, frames)


@pytest.mark.parametrize(
    ("kind", "threads", "has_native"),
    [
        (GIL, [stand(PID, "sleep", TAKE, has_gil=True), stand(2, "gil", JOIN)], True),
        (DEADLOCK, [stand(PID, "lock", JOIN), stand(2, "lock", TAKE), stand(3, "lock", TAKE)], True),
        (CIRCLE, [stand(PID, None, [MAIN], 0.1, is_idle=False), hold(stand(2, "lock", TAKE), 3),
                  hold(stand(3, "lock", JOIN), 2), hold(stand(4, "lock", TAKE), 2)], True),
        (CIRCLE, [stand(PID, None, [MAIN], is_idle=False), hold(stand(2, "lock", TAKE), 2)], True),
        (DEADLOCK, [stand(PID, "lock", TAKE)], False),
        (DEADLOCK, [stand(PID, "lock", HANDLER)], False),
        (LOCKS, [stand(PID, "sleep", [MAIN], 0.5), stand(2, "lock", TAKE), stand(3, "lock", TAKE)], True),
        (ALONE, [stand(PID, "lock", GET)], False),
        (OUTSIDE, [stand(PID, "network", TAKE), stand(2, "lock", GET)], False),
    ],
    ids=["a call holds the GIL", "locks", "a circle beside work", "its own lock", "a lock of the parent", "a lock of logging",
         "locks, and one rests", "a queue of nobody", "a socket"],
)  # fmt: skip
def test_what_stands_still_is_told(kind: str, threads: list, has_native: bool) -> None:
    found = find_standstill(threads, PID, 5, has_native=has_native)
    assert found is not None and found.kind == kind
    assert found.stood_s == 20 and "20.0 s" in found.summary and "/job/app.py" in found.sentence


@pytest.mark.parametrize(
    ("threads", "has_native"),
    [
        ([stand(PID, "lock", TAKE, 1.0)], False),
        ([stand(PID, None, TAKE, is_idle=False), stand(2, "lock", TAKE)], False),
        ([stand(PID, None, TAKE, is_idle=False), hold(stand(2, "lock", TAKE), None)], False),
        ([stand(PID, None, TAKE, is_idle=False), hold(stand(2, "lock", TAKE), 3, seen_s=9.0),
          hold(stand(3, "lock", TAKE, 6.0), 2)], False),
        ([stand(PID, "network", ACCEPT)], False),
        ([stand(PID, "poll", [MAIN]), stand(2, "lock", GET)], False),
        ([stand(PID, "lock", EVENT)], False),
        ([stand(PID, "sleep", [MAIN])], False),
        ([stand(PID, "shared_lock", WORKER)], False),
        ([stand(PID, "lock", BACKWARD)], True),
        ([stand(PID, "lock", GET)], True),
    ],
    ids=["it was only a moment", "somebody works", "nobody knows who holds it",
         "the holder moved since", "a server", "an event loop", "a daemon",
         "a sleep", "a worker without work", "native threads work", "a native thread may put"],
)  # fmt: skip
def test_what_rests_or_may_move_is_not(threads: list, has_native: bool) -> None:
    assert find_standstill(threads, PID, 5, has_native=has_native) is None


HOLDS_THE_GIL = """
import ctypes, threading, time
threading.Thread(target=lambda: [time.sleep(0.01) for _ in range(10**6)], daemon=True).start()
print("ready", flush=True)
ctypes.PyDLL(None).sleep(1000)  # does not give the GIL back
"""
RESTS = """
import multiprocessing
if __name__ == "__main__":
    lock = multiprocessing.Lock()
    lock.acquire()
    print("ready", flush=True)
    lock.acquire()  # which another process may give back
"""


def test_a_live_process_that_stands_still_comes_first_in_ps_and_in_advice(
    start, sonde_cli, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the programs begin
    job, other = start(HOLDS_THE_GIL, SONDE="1"), start(RESTS, SONDE="1")
    wait_for(lambda: "holds the GIL" in sonde_cli("ps").stdout.partition("\n")[0])
    assert " program0.py:5 in <module>" in sonde_cli("ps").stdout.partition("\n")[0]
    assert f"process {other.pid}: " not in sonde_cli("ps").stdout
    wait_for(lambda: any(one.rule == "hang" for one in sonde.advise(job.pid).findings))
    found = sonde.advise(job.pid).findings[0]
    assert found.rule == "hang" and found.severity == "critical" and "holds the GIL" in found.title
    assert found.line.endswith("program0.py:5 in <module>")
    wait_for(lambda: "hang" in [one.rule for one in sonde.advise(other.pid).findings])
    assert sonde.advise(other.pid).worst == "info"


def test_of_a_process_that_goes_on_few_rows_are_read(start, monkeypatch) -> None:
    start("while True: sum(range(1000))", ready=False, SONDE="1")
    (session,) = wait_for(lambda: [*list_sessions(os.environ["SONDE_DIR"])])
    asked: list[int] = []

    def read(session, table, most):
        asked.append(most)
        return stack_table.read_newest_rows(session, table, most)

    monkeypatch.setattr(
        standstill,
        "stack_table",
        SimpleNamespace(**{**vars(stack_table), "read_newest_rows": read}),
    )

    def has_looked() -> bool:
        asked.clear()
        return standstill.look_at(session, 0.5) is None and asked != []

    wait_for(has_looked)
    assert asked == [standstill._FEW_ROWS] and asked[0] < standstill._MOST_ROWS / 10
