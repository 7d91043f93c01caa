"""python.trigger: stacks that are taken because something happened."""

from __future__ import annotations

from pathlib import Path

import pytest

import sonde
from conftest import TIMEOUT_S, wait_for
from sonde.errors import ConfigError
from sonde.session import Session, list_sessions, steering
from sonde.settings import read_values

HEAD = """
import time, sonde
def start(on, **more): sonde.start(collector="off", trigger_on=on, **more)
def wait():
    folder = sonde.session().folder
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if sonde.open(folder).query("SELECT * FROM python.trigger").num_rows: return
        time.sleep(0.01)
"""
PLACES = """
    SELECT t.number, t.condition, t.value, t.thread = t.pid AS main, t.missed, f.func
    FROM python.trigger t LEFT JOIN python.frame f ON f.stack = t.stack AND f.depth = {depth}
    ORDER BY t.number"""


def only_session(root: Path) -> Session:
    (session,) = list_sessions(str(root))
    return session


def read(root: Path, sql: str) -> list[dict[str, object]]:
    return sonde.open(only_session(root).folder).query(sql).to_pylist()


def read_places(root: Path, depth: int = 0) -> list[dict[str, object]]:
    return read(root, PLACES.format(depth=depth))


def test_a_counter_that_passes_a_limit_is_a_row_with_the_place_that_set_it(run, root) -> None:
    run(
        HEAD
        + """
start("counter:queue>5; counter:room<2")
def put(n):
    sonde.counter("queue", n)
    if n == 6: wait()
for n in (1, 6, 7, 3, 8): put(n)
sonde.counter("room", 1.5); sonde.counter("other", 100)
"""
    )
    rows = read_places(root)
    assert [(row["condition"], row["value"], row["main"]) for row in rows] == [
        ("counter:queue>5", 6.0, True),
        ("counter:queue>5", 8.0, True),
        ("counter:room<2", 1.5, True),
    ]
    first = "SELECT func FROM python.trigger JOIN python.frame USING (stack) WHERE number = 1"
    assert {"put", "<module>"} <= {row["func"] for row in read(root, first)}


def test_a_span_that_lasts_too_long_is_seen_while_it_lasts(run, root) -> None:
    run(
        HEAD
        + """
start("span:load>300ms")
def load():
    with sonde.span("load"): pass
    with sonde.span("read"): time.sleep(0.4)
    with sonde.span("load"): slow()
def slow(): wait()
load()
"""
    )
    (row,) = read_places(root)
    assert (row["number"], row["condition"]) == (1, "span:load>300ms")
    assert float(row["value"]) >= 0.3
    functions = "SELECT func FROM python.trigger JOIN python.frame USING (stack)"
    assert {"slow", "load", "<module>"} <= {one["func"] for one in read(root, functions)}


def test_a_step_that_takes_far_longer_than_usual_is_seen_while_it_lasts(run, root) -> None:
    run(
        HEAD
        + """
start("step>20x; step>1h")
for _ in range(10):
    time.sleep(0.005)
    sonde.step()
def stuck(): wait()
stuck()
sonde.step()
"""
    )
    (row,) = read_places(root)
    assert row["condition"] == "step>20x"
    functions = "SELECT func FROM python.trigger JOIN python.frame USING (stack)"
    assert "stuck" in {one["func"] for one in read(root, functions)}


def test_a_program_that_stands_still_is_seen_even_if_it_holds_the_gil(start, root) -> None:
    # Far longer than the test takes, and Python's own lock is never released.
    process = start(
        HEAD
        + """
start("hang>100ms")
import ctypes
def stand(): ctypes.PyDLL(None).sleep(600)
print("ready", flush=True)
stand()
"""
    )
    wait_for(lambda: read(root, "SELECT * FROM python.trigger"))
    (row, *_more) = read_places(root)
    assert (row["condition"], row["func"], row["main"]) == ("hang>100ms", "stand", True)
    process.kill()


def test_a_hang_of_a_program_with_steps_is_that_no_step_ends(run, root) -> None:
    run(
        HEAD
        + """
start("hang>200ms")
sonde.step()
def busy():
    end = time.monotonic() + 60
    while time.monotonic() < end: wait(); return
busy()
"""
    )
    (row,) = read_places(root)
    assert row["condition"] == "hang>200ms"


def test_memory_and_exceptions_are_conditions_and_all_threads_are_sampled(run, root) -> None:
    run(
        HEAD
        + """
import threading
start("memory>1MiB; exception", stack_every=3600)
wait()
def idle(): threading.Event().wait(600)
threading.Thread(target=idle, daemon=True, name="idle").start()
def fail(): raise OSError("no")
thread = threading.Thread(target=fail); thread.start(); thread.join()
"""
    )
    rows = read_places(root)
    assert [row["condition"] for row in rows] == ["memory>1MiB", "exception"]
    assert float(rows[0]["value"]) > 2**20
    assert (rows[1]["value"], rows[1]["main"]) == (None, False)
    others = """
        SELECT DISTINCT f.func FROM python.trigger t, python.stack_sample s, python.frame f
        WHERE t.condition = 'exception' AND abs(s.t_ns - t.t_ns) < 1e9 AND f.stack = s.stack"""
    assert "idle" in {row["func"] for row in read(root, others)}


def test_conditions_can_be_changed_while_the_program_runs(start, root) -> None:
    process = start(
        HEAD
        + """
sonde.start(collector="off")
print("ready", flush=True)
def work():
    while True:
        sonde.counter("depth", 7); sonde.counter("depth", 0)
        time.sleep(0.001)
work()
"""
    )
    session = only_session(root)
    word = "SELECT detail FROM sonde.source WHERE source = 'trigger'"
    assert read(root, word) == [{"detail": "nothing is waited for; set trigger.on"}]
    steering.configure(session, {"trigger.on": "counter:depth>5", "trigger.most": "3"}, TIMEOUT_S)
    wait_for(lambda: len(read_places(root)) == 3)
    assert read(root, word) == [{"detail": None}]
    assert {row["condition"] for row in read_places(root)} == {"counter:depth>5"}
    steering.configure(session, {"trigger.on": "off"}, TIMEOUT_S)
    wait_for(lambda: read(root, word) != [{"detail": None}])
    process.kill()


def test_what_had_no_row_is_counted_by_the_next_that_has_one(run, root) -> None:
    run(
        HEAD
        + """
start("counter:n>0", trigger_most=2)
for n in (1, 0, 1, 0, 1, 0, 1, 0): sonde.counter("n", n)
"""
    )
    assert [(row["number"], row["missed"]) for row in read_places(root)] == [(1, 0), (2, 0)]


@pytest.mark.parametrize("text", ["step", "span>1s", "step<1s", "hang>soon", "counter:>5", "x>1"])
def test_a_condition_that_is_not_understood_is_an_error(text) -> None:
    with pytest.raises(ConfigError, match="is not understood"):
        read_values({"trigger.on": text})


def test_conditions_are_kept_as_they_were_written() -> None:
    text = "exception, step>1.5x; span:a b:c>1s ;counter:x <= 5"
    with pytest.raises(ConfigError):
        read_values({"trigger.on": text})
    assert read_values({"trigger.on": text.replace("<=", "<")}) == {
        "trigger.on": "exception; step>1.5x; span:a b:c>1s; counter:x < 5"
    }
