"""The numbers of the live view are those of SQL, from the ring and from the archive."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.session import Session
from sonde.session.ring import Ring
from sonde.session.stack_table import WEIGHTS
from sonde.store.held import HeldRecording
from sonde.tui import shares
from sonde.tui.process import TopProcess, describe_misses, open_processes
from sonde.tui.samples import IS_IDLE, Samples
from sonde.tui.tree import StackTree, Unit, make_tree
from support.watched_process import BUSY, SHARES

# The casts keep DuckDB 1.5 from handing numbers of 64 bits to pyarrow, which takes 63.
FUNCTIONS_SQL = """
WITH samples AS (
    SELECT stack::HUGEINT AS stack, SUM(CASE '{weight}' WHEN 'cpu' THEN cpu_ns
        WHEN 'gil' THEN CASE WHEN gil THEN wall_ns ELSE 0 END
        ELSE CASE WHEN {is_idle} AND NOT {idle} THEN 0 ELSE wall_ns END END) AS weight
    FROM python.stack_sample WHERE t_ns >= {since} GROUP BY stack),
frames AS (SELECT stack::HUGEINT AS stack, depth, func, file, {line} AS line FROM python.frame),
self AS (SELECT func, file, line, SUM(weight) AS self
         FROM samples JOIN frames USING (stack) WHERE depth = 0 GROUP BY ALL),
units AS (SELECT DISTINCT stack, func, file, line FROM frames),
total AS (SELECT func, file, line, SUM(weight) AS total
          FROM samples JOIN units USING (stack) GROUP BY ALL)
SELECT func, file, line, COALESCE(self, 0)::BIGINT AS self, total::BIGINT AS total
FROM total LEFT JOIN self USING (func, file, line) WHERE total > 0
"""


def ask(process: TopProcess, sql: str) -> list[dict[str, object]]:
    return sonde.open(process.session.folder).query(sql).to_pylist()


def check_against_sql(process: TopProcess, window_s: float, weight: str, idle: bool) -> int:
    """The model's functions and lines of a window are those of SQL; how many there are."""
    process.add_up(window_s)
    since = process.find_since(window_s)
    weighed = process.weigh(window_s, weight, idle=idle)
    count = 0
    for units, line in ((weighed.tree.functions, "first_line"), (weighed.tree.by_line, "lineno")):
        sql = FUNCTIONS_SQL.format(
            since=since, weight=weight, is_idle=IS_IDLE, idle=idle, line=line
        )
        expected = {
            Unit(str(row["func"]), str(row["file"]), int(str(row["line"]))): (
                row["self"],
                row["total"],
            )
            for row in ask(process, sql)
        }
        found = {s.unit: (s.self_ns, s.total_ns) for s in shares.list_shares(weighed, units)}
        assert found == expected
        count += len(found)
    return count


@pytest.fixture
def ended(run) -> TopProcess:
    """A process that ran for a second and has ended; its rows are in the rings."""
    return TopProcess(Session(run(SHARES, "off", "1.5").stdout.strip()))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_windows_are_what_sql_says(ended: TopProcess, weight: str) -> None:
    for window_s, idle in ((1.0, False), (5.0, True), (300.0, False)):
        assert check_against_sql(ended, window_s, weight, idle) > 10


def test_since_start_is_the_sum_of_python_stack(ended: TopProcess) -> None:
    sums = "SELECT SUM(wall_ns)::BIGINT AS wall, SUM(cpu_ns)::BIGINT AS cpu, SUM(gil_ns)::BIGINT AS gil"
    (row,) = ask(ended, f"{sums} FROM python.stack")
    for weight in WEIGHTS:
        assert ended.weigh(None, weight, idle=True).whole == row[weight] > 0
    by_func = "SELECT func, SUM(cpu_ns)::BIGINT AS n FROM python.stack GROUP BY func"
    expected = {row["func"]: row["n"] for row in ask(ended, by_func)}
    weighed = ended.weigh(None, "cpu", idle=True)
    for share in shares.list_shares(weighed, weighed.tree.functions):
        assert share.self_ns == expected[share.unit.func]


def test_known_shares_are_found(run) -> None:
    process = TopProcess(Session(run(SHARES, "off", "3").stdout.strip()))
    for window_s in (60.0, None):
        weighed = process.weigh(window_s, "cpu", idle=False)
        found = shares.list_shares(weighed, weighed.tree.functions)
        pct = {share.unit.func: 100 * share.total_ns / weighed.whole for share in found}
        for name, expected in (("half", 50), ("third", 30), ("sixth", 15), ("rest", 5)):
            assert pct[name] == pytest.approx(expected, abs=4), pct
        assert pct["recurse"] == pytest.approx(pct["rest"], abs=1), "recursion counts once"
        assert pct["work"] > 95 and pct["<module>"] > 95


def test_callers_and_callees_add_up(ended: TopProcess) -> None:
    weighed = ended.weigh(300.0, "cpu", idle=True)
    units = weighed.tree.functions
    names = {unit.func: unit for unit in units.names}
    spin, recurse = units.find(names["spin"]), units.find(names["recurse"])
    callers = shares.list_callers(weighed, units, spin)
    assert {share.unit.func for share in callers} == {"half", "third", "sixth", "rest"}
    total = next(s.total_ns for s in shares.list_shares(weighed, units) if s.unit.func == "spin")
    assert sum(share.total_ns for share in callers) == total
    whole = {s.unit.func: s.total_ns for s in shares.list_shares(weighed, units)}
    callees = {s.unit.func: s.total_ns for s in shares.list_callees(weighed, units, recurse)}
    assert set(callees) <= {"recurse", "rest"} and callees["rest"] == whole["rest"]
    assert callees["recurse"] <= whole["recurse"], "a call in a call counts once"


def test_a_sealed_session_gives_the_same_numbers(run) -> None:
    session = Session(run(SHARES, "on", "1.5").stdout.strip())
    wait_for(lambda: session.read_sealed() is not None and not session.find_rings())
    process = TopProcess(session)
    assert check_against_sql(process, 300.0, "wall", True) > 10
    weighed = process.weigh(None, "cpu", idle=True)
    found = {s.unit.func: s.total_ns for s in shares.list_shares(weighed, weighed.tree.functions)}
    # On a busy machine the smaller ones have a sample or two: their order is chance.
    assert found["half"] > max(found.get("sixth", 0), found.get("rest", 0)) and found["third"] > 0
    assert process.read_usage() is None or process.read_usage()["rss_bytes"] > 0


def test_sealed_sessions_are_asked_together(run, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = [Session(run(SHARES, "on", "0.5").stdout.strip()) for _ in range(2)]
    for session in sessions:
        wait_for(lambda it=session: it.read_sealed() is not None and not it.find_rings())
    asked: list[str] = []
    query = HeldRecording.query

    def count(self: HeldRecording, sql: str):
        asked.append(sql)
        return query(self, sql)

    monkeypatch.setattr(HeldRecording, "query", count)
    for process in open_processes(sessions):
        assert check_against_sql(process, 300.0, "wall", True) > 10
        assert process.count_threads() > 0 and process.weigh(None, "cpu", idle=True).whole > 0
        assert process.read_usage() == TopProcess(process.session).read_usage()
    assert asked and len(asked) == len(set(asked))


def freeze(process: subprocess.Popen[str]) -> TopProcess:
    """The process stopped in its tracks, so that SQL and model see the same rows."""
    found = TopProcess(sonde.open(process.pid).sessions[0])
    os.kill(process.pid, signal.SIGSTOP)
    status = Path(f"/proc/{process.pid}/stat")
    wait_for(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")
    return found


def test_a_window_that_moves_on_is_what_sql_says(start) -> None:
    child = start(BUSY, "off", "8MiB")
    process = TopProcess(sonde.open(child.pid).sessions[0])
    begin = time.monotonic()

    def watch() -> bool:
        process.refresh()
        process.add_up(1.0)
        return time.monotonic() - begin > 2.5

    wait_for(watch)
    freeze(child)
    process.refresh()
    assert check_against_sql(process, 1.0, "wall", True) > 5
    assert check_against_sql(process, 300.0, "cpu", False) > 5
    assert check_against_sql(process, 5.0, "gil", False) > 5


def test_a_window_beyond_the_ring_is_read_from_the_archive(start) -> None:
    child = start(BUSY, "on", "512KiB")
    session = sonde.open(child.pid).sessions[0]
    sql = "SELECT COUNT(*) AS n FROM python.stack_sample"

    def is_full() -> bool:
        rings = [path for path in session.find_rings() if "stack_sample" in path]
        (row,) = sonde.open(session.folder).query(sql).to_pylist()
        ring = Ring(rings[0])
        return ring.head > ring.capacity * 5 // 4 and row["n"] > ring.capacity

    wait_for(is_full)
    process = freeze(child)
    assert check_against_sql(process, 1.0, "wall", True) > 5
    assert check_against_sql(process, 300.0, "wall", True) > 5
    assert check_against_sql(process, 300.0, "cpu", True) > 5
    states = {load.name: load.now for load in process.list_loads(300.0)}
    assert states["brief"] == "ended" and states["sleeper"] == "idle"


def test_threads_are_what_sql_says(start) -> None:
    child = start(BUSY, "off", "8MiB")
    session = sonde.open(child.pid).sessions[0]

    def is_asleep() -> bool:
        loads = TopProcess(session).list_loads(5.0)
        return ("sleeper", "idle") in {(load.name, load.now) for load in loads}

    wait_for(is_asleep)
    process = freeze(child)
    process.refresh()
    loads = {load.thread: load for load in process.list_loads(5.0)}
    sql = f"""SELECT thread, SUM(CASE WHEN {IS_IDLE} THEN 0 ELSE wall_ns END)::BIGINT AS busy,
        SUM(cpu_ns)::BIGINT AS cpu, SUM(CASE WHEN gil THEN wall_ns ELSE 0 END)::BIGINT AS gil
        FROM python.stack_sample WHERE t_ns >= {process.find_since(5.0)} GROUP BY thread"""
    for row in ask(process, sql):
        load = loads[row["thread"]]
        assert (load.busy_ns, load.cpu_ns, load.gil_ns) == (row["busy"], row["cpu"], row["gil"])
    backtrace = ask(
        process,
        "SELECT thread, name, func, lineno, gil, idle FROM python.backtrace WHERE depth = 0",
    )
    assert len(backtrace) == len([load for load in loads.values() if load.now != "ended"])
    for row in backtrace:
        unit = process.tree.by_line.names[process.tree.by_line.of[loads[row["thread"]].place]]
        assert (unit.func, unit.line, loads[row["thread"]].name) == (
            row["func"],
            row["lineno"],
            row["name"],
        )
    assert next(load for load in loads.values() if load.name == "sleeper").now == "idle"


def test_the_gil_and_the_costs_are_what_sql_says(ended: TopProcess) -> None:
    since, span = ended.find_since(300.0), ended.find_span(300.0)
    sql = f"SELECT SUM(wall_ns) FILTER (gil)::BIGINT AS gil FROM python.stack_sample WHERE t_ns >= {since}"
    (row,) = ask(ended, sql)
    assert ended.find_gil_pct(300.0) == pytest.approx(100 * row["gil"] / span)
    rows = ask(ended, "SELECT t_ns, cpu_ns FROM python.sampling ORDER BY t_ns")
    assert rows and 0 < ended.find_cost_pct() < 100


def test_a_tree_in_any_order_is_the_same_tree() -> None:
    rows = [
        {
            "stack": n + 1,
            "parent": n or None,
            "func": f"f{n}",
            "file": "x.py",
            "lineno": n,
            "first_line": 1,
        }
        for n in range(5)
    ]
    for order in (rows, rows[::-1]):
        tree = make_tree(order)
        place = tree.places[5]
        names = [tree.by_line.names[tree.by_line.of[at]].func for at in tree.walk(place)]
        assert names == ["f4", "f3", "f2", "f1", "f0"]
    round_about = [{**rows[0], "parent": 2}, rows[1]]
    assert len(make_tree(round_about)) == 3, "a circle ends"


def test_losses_are_said_in_words() -> None:
    none = dict.fromkeys(("torn", "cut", "skipped_interpreters"), 0)
    assert describe_misses({**none, "due": 100, "taken": 100}) == []
    said = describe_misses({**none, "due": 1000, "taken": 900, "cut": 7})
    assert said == [
        "samples not taken in time: 100 of 1,000",
        "stacks cut at 512 frames: 7",
    ]


def test_samples_that_were_overwritten_unread_are_read_anew(start) -> None:
    child = start(BUSY, "off", "64KiB")
    process = TopProcess(sonde.open(child.pid).sessions[0])
    process.add_up(1.0)
    head = process.samples._ring.head
    wait_for(lambda: process.samples._ring.head > head + 3 * process.samples._ring.capacity)
    process.refresh()
    freeze(child)
    process.refresh()
    assert process.add_up(1.0), "it goes on with what there is"


def test_reading_needs_no_database_while_the_ring_holds_the_window(ended: TopProcess) -> None:
    def refuse(sql: str) -> list[dict[str, object]]:
        raise AssertionError(sql)

    assert Samples(ended.session, refuse).add_up(ended.find_since(300.0))


def test_a_place_is_named_as_in_every_other_command() -> None:
    from sonde.tui.tree import Unit

    loads = Unit("loads", "/usr/lib/python3.11/json/__init__.py", 299)
    assert loads.show_place("/home/ada/job") == "json/__init__.py:299"
    assert Unit("f", "/home/ada/job/app.py", 1).show_place("/home/ada/job") == "app.py:1"
    assert Unit("f", "", 1).show_place(None) == ""


def test_what_our_own_frames_take_is_their_callers() -> None:
    files = ("/job/train.py", "/venv/site-packages/sonde/environ.py", "/job/model.py")
    rows = [
        {
            "stack": n + 1, "parent": n or None, "func": f"f{n}", "file": file, "lineno": n,
            "first_line": 1,
        }
        for n, file in enumerate(files)
    ]  # fmt: skip
    tree = make_tree(rows)
    weighed = shares.weigh_all(tree, [2, 3], [5, 7])
    found = {s.unit.func: (s.self_ns, s.total_ns) for s in shares.list_shares(weighed, tree.folded)}
    assert found == {"f0": (5, 12), "f2": (7, 7)}


def test_what_our_own_frames_import_is_their_callers() -> None:
    files = ("/job/train.py", "/venv/site-packages/sonde/job/attached.py",
             "<frozen importlib._bootstrap>", "/usr/lib/python3.12/json/__init__.py")  # fmt: skip
    funcs = ("main", "_reply", "_find_and_load", "<module>")
    tree = StackTree()
    for n, (func, file) in enumerate(zip(funcs, files, strict=True)):
        tree.add(n, len(tree) - 1 if n else -1, func, file, n, 1)
    weighed = shares.weigh_all(tree, [0, 3], [5, 7])
    found = [(s.unit.func, s.self_ns) for s in shares.list_shares(weighed, tree.folded)]
    assert found == [("main", 12)]
