"""sonde top: its numbers are those of SQL, its screen shows them, and it survives what it watches."""

from __future__ import annotations

import asyncio
import csv
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import sonde
from conftest import TIMEOUT_S, wait_for
from sonde.session import Session
from sonde.tui import shares
from sonde.tui.grid import cut
from sonde.tui.page import Choice, make_page
from sonde.tui.process import Process, describe_misses, open_processes
from sonde.tui.samples import Samples
from sonde.tui.screen import Top
from sonde.tui.tree import Unit, make_tree

# Four functions that use half, 30, 15 and 5 percent of the CPU time, whoever else wants it.
SHARES = """
import sonde, sys, time
def spin(ns):
    end = time.thread_time_ns() + ns
    while time.thread_time_ns() < end: pass
def half(): spin(5_000_000)
def third(): spin(3_000_000)
def sixth(): spin(1_500_000)
def rest(): spin(500_000)
def recurse(n): return recurse(n - 1) if n else rest()
def work():
    half(); third(); sixth(); recurse(20)
print(sonde.start(collector=sys.argv[1], stack_every=0.001, archive_every=0.5), flush=True)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end: work()
"""

# Threads that do all there is: compute, sleep, end; with names of their own.
BUSY = """
import sonde, sys, threading, time
def spin():
    for i in range(3000): pass
def deep(n): deep(n - 1) if n else spin()
def work():
    while True: spin(); deep(5); time.sleep(0.002)
def sleep_long():
    while True: time.sleep(30)
sonde.start(collector=sys.argv[1], stack_every=0.002, archive_every=0.5, ring_bytes=sys.argv[2])
for i in range(3): threading.Thread(target=work, name=f"worker-{i}", daemon=True).start()
threading.Thread(target=sleep_long, name="sleeper", daemon=True).start()
print("ready", flush=True)
work()
"""

# The casts keep DuckDB 1.5 from handing numbers of 64 bits to pyarrow, which takes 63.
FUNCTIONS_SQL = """
WITH samples AS (
    SELECT stack::HUGEINT AS stack, SUM(CASE '{weight}' WHEN 'cpu' THEN cpu_ns
        WHEN 'gil' THEN CASE WHEN gil THEN wall_ns ELSE 0 END
        ELSE CASE WHEN idle AND NOT {idle} THEN 0 ELSE wall_ns END END) AS weight
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


def ask(process: Process, sql: str) -> list[dict[str, object]]:
    return sonde.open(process.session.folder).query(sql).to_pylist()


def check_against_sql(process: Process, window_s: float, weight: str, idle: bool) -> int:
    """The model's functions and lines of a window are those of SQL; how many there are."""
    process.add_up(window_s)
    since = process.find_since(window_s)
    weighed = process.weigh(window_s, weight, idle=idle)
    count = 0
    for units, line in ((weighed.tree.functions, "first_line"), (weighed.tree.by_line, "lineno")):
        sql = FUNCTIONS_SQL.format(since=since, weight=weight, idle=idle, line=line)
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
def ended(run) -> Process:
    """A process that ran for a second and has ended; its rows are in the rings."""
    return Process(Session(run(SHARES, "off", "1.5").stdout.strip()))


@pytest.mark.parametrize("weight", shares.WEIGHTS)
def test_windows_are_what_sql_says(ended: Process, weight: str) -> None:
    for window_s, idle in ((1.0, False), (5.0, True), (300.0, False)):
        assert check_against_sql(ended, window_s, weight, idle) > 10


def test_since_start_is_the_sum_of_python_stack(ended: Process) -> None:
    sums = "SELECT SUM(wall_ns)::BIGINT AS wall, SUM(cpu_ns)::BIGINT AS cpu, SUM(gil_ns)::BIGINT AS gil"
    (row,) = ask(ended, f"{sums} FROM python.stack")
    for weight in shares.WEIGHTS:
        assert ended.weigh(None, weight, idle=True).whole == row[weight] > 0
    by_func = "SELECT func, SUM(cpu_ns)::BIGINT AS n FROM python.stack GROUP BY func"
    expected = {row["func"]: row["n"] for row in ask(ended, by_func)}
    weighed = ended.weigh(None, "cpu", idle=True)
    for share in shares.list_shares(weighed, weighed.tree.functions):
        assert share.self_ns == expected[share.unit.func]


def test_known_shares_are_found(run) -> None:
    process = Process(Session(run(SHARES, "off", "3").stdout.strip()))
    for window_s in (60.0, None):
        weighed = process.weigh(window_s, "cpu", idle=False)
        found = shares.list_shares(weighed, weighed.tree.functions)
        pct = {share.unit.func: 100 * share.total_ns / weighed.whole for share in found}
        for name, expected in (("half", 50), ("third", 30), ("sixth", 15), ("rest", 5)):
            assert pct[name] == pytest.approx(expected, abs=4), pct
        assert pct["recurse"] == pytest.approx(pct["rest"], abs=1), "recursion counts once"
        assert pct["work"] > 95 and pct["<module>"] > 95


def test_callers_and_callees_add_up(ended: Process) -> None:
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
    process = Process(session)
    assert check_against_sql(process, 300.0, "wall", True) > 10
    weighed = process.weigh(None, "cpu", idle=True)
    found = {s.unit.func: s.total_ns for s in shares.list_shares(weighed, weighed.tree.functions)}
    assert found["half"] > found["third"] > found["sixth"] > found["rest"] > 0
    assert process.read_usage() is None or process.read_usage()["rss_bytes"] > 0


def freeze(process: subprocess.Popen[str]) -> Process:
    """The process stopped in its tracks, so that SQL and model see the same rows."""
    found = Process(sonde.open(process.pid).sessions[0])
    os.kill(process.pid, signal.SIGSTOP)
    status = Path(f"/proc/{process.pid}/stat")
    wait_for(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")
    return found


def test_a_window_that_moves_on_is_what_sql_says(start) -> None:
    child = start(BUSY, "off", "8MiB")
    process = Process(sonde.open(child.pid).sessions[0])
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
        from sonde.ring import Ring

        ring = Ring(rings[0])
        return ring.head > ring.capacity * 5 // 4 and row["n"] > ring.capacity

    wait_for(is_full)
    process = freeze(child)
    assert check_against_sql(process, 1.0, "wall", True) > 5
    assert check_against_sql(process, 300.0, "wall", True) > 5
    assert check_against_sql(process, 300.0, "cpu", True) > 5


def test_threads_are_what_sql_says(start) -> None:
    child = start(BUSY, "off", "8MiB")
    session = sonde.open(child.pid).sessions[0]

    def is_asleep() -> bool:
        loads = Process(session).list_loads(5.0)
        return ("sleeper", "idle") in {(load.name, load.now) for load in loads}

    wait_for(is_asleep)
    process = freeze(child)
    process.refresh()
    loads = {load.thread: load for load in process.list_loads(5.0)}
    sql = f"""SELECT thread, SUM(CASE WHEN idle THEN 0 ELSE wall_ns END)::BIGINT AS busy,
        SUM(cpu_ns)::BIGINT AS cpu, SUM(CASE WHEN gil THEN wall_ns ELSE 0 END)::BIGINT AS gil
        FROM python.stack_sample WHERE t_ns >= {process.find_since(5.0)} GROUP BY thread"""
    for row in ask(process, sql):
        load = loads[row["thread"]]
        assert (load.busy_ns, load.cpu_ns, load.gil_ns) == (row["busy"], row["cpu"], row["gil"])
    backtrace = ask(
        process,
        "SELECT thread, name, func, lineno, gil, idle FROM python.backtrace WHERE depth = 0",
    )
    assert len(backtrace) == len([load for load in loads.values() if load.now != "ended"]) == 5
    for row in backtrace:
        unit = process.tree.by_line.names[process.tree.by_line.of[loads[row["thread"]].place]]
        assert (unit.func, unit.line, loads[row["thread"]].name) == (
            row["func"],
            row["lineno"],
            row["name"],
        )
    assert next(load for load in loads.values() if load.name == "sleeper").now == "idle"


def test_the_gil_and_the_costs_are_what_sql_says(ended: Process) -> None:
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
    none = dict.fromkeys(("stacks_lost", "torn", "cut", "skipped_interpreters"), 0)
    assert describe_misses({**none, "due": 100, "taken": 100}) == []
    said = describe_misses({**none, "due": 1000, "taken": 900, "stacks_lost": 7})
    assert said == [
        "samples without room for their stack (see stack.bytes): 7",
        "samples not taken in time: 100 of 1,000",
    ]


def test_samples_that_were_overwritten_unread_are_read_anew(start) -> None:
    child = start(BUSY, "off", "64KiB")
    process = Process(sonde.open(child.pid).sessions[0])
    process.add_up(1.0)
    head = process.samples._ring.head
    wait_for(lambda: process.samples._ring.head > head + 3 * process.samples._ring.capacity)
    process.refresh()
    freeze(child)
    process.refresh()
    assert process.add_up(1.0), "it goes on with what there is"


# ---- the screen ---------------------------------------------------------------------------------


def read_screen(app: Top) -> list[str]:
    """What is on the screen, from its own picture of itself."""
    lines: dict[float, dict[float, str]] = {}
    picture = ElementTree.fromstring(app.export_screenshot())
    for text in picture.iter("{http://www.w3.org/2000/svg}text"):
        if "y" in text.attrib and "clip-path" in text.attrib:
            at = lines.setdefault(float(text.attrib["y"]), {})
            at[float(text.attrib["x"])] = (text.text or "").replace("\xa0", " ").strip("\n")
    return ["".join(text for _, text in sorted(line.items())) for _, line in sorted(lines.items())]


def drive(
    processes: list[Process],
    size: tuple[int, int],
    steps: Callable[[Top, Callable[..., Awaitable[str]]], Awaitable[None]],
    choice: Choice | None = None,
) -> None:
    """Run the screen; `see(*keys, until=…)` presses keys and returns what is then to be seen."""

    async def main() -> None:
        app = Top(processes, choice or Choice(window_s=300.0))
        async with app.run_test(size=size) as pilot:

            async def see(*keys: str, until: str = "") -> str:
                await pilot.press(*keys)
                deadline = time.monotonic() + TIMEOUT_S
                while True:
                    await pilot.pause(0.02)
                    seen = "\n".join(read_screen(app))
                    if re.search(until, seen):
                        return seen
                    assert time.monotonic() < deadline, f"{until} is not in\n{seen}"

            await steps(app, see)

    asyncio.run(main())


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_the_views_show_what_the_model_says(ended: Process, size) -> None:
    async def steps(app: Top, see) -> None:
        seen = await see(until="half")
        assert max(map(len, seen.splitlines())) <= size[0] and len(seen.splitlines()) <= size[1]
        assert f"pid {ended.session.pid}" in seen and "sampled every 1 ms" in seen and "GIL" in seen
        rows = make_page(app.choice, ended, [ended]).rows
        shown = [line for line in seen.splitlines() if re.search(r"\d\.\d +\d+\.\d ", line)]
        assert len(shown) == len(rows) and shown[0].split()[-5:-2] == list(rows[0].cells[:3])
        assert "program.py:" in await see("l", until="lines · ")
        assert "MainThread" in await see("t", until="threads · ")
        await see("s", until="the last stacks")
        assert "calls of spin" in await see("f", "1", "enter", until="caller")
        assert "callee" not in await see(until="itself")
        assert "calls of" not in await see("escape", until="functions · ")
        assert "help" in seen and "quit" in seen

    drive([ended], size, steps)


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_the_stacks_of_all_threads_are_a_tree(start, size) -> None:
    child = start(BUSY, "off", "8MiB")
    process = Process(sonde.open(child.pid).sessions[0])

    async def steps(app: Top, see) -> None:
        seen = await see("s", until=r"stacks of 5 threads, now(?s:.*)● MainThread")
        lines = seen.splitlines()
        root = next(at for at, line in enumerate(lines) if line.startswith("<module>"))
        assert lines[root + 1].startswith("work")
        assert await see("end", until=r"[├└] ● worker-2 \(\w+\)|● sleeper \((idle|running)\)")
        assert await see("slash", *"sleeper", "enter", until=r"sleep_long(?s:.*)● sleeper")

    drive([process], size, steps, Choice())


def test_keys_sort_weigh_widen_and_filter(ended: Process) -> None:
    def first(seen: str) -> str:
        head = next(at for at, line in enumerate(seen.splitlines()) if "total%" in line)
        return seen.splitlines()[head + 1]

    async def steps(app: Top, see) -> None:
        assert "spin" in first(await see(until="self%▼"))
        assert float(first(await see("2", until="total%▼")).split()[1]) > 95
        names = [row.cells[3] for row in make_page(app.choice, ended, [ended]).rows]
        assert "<module>" in first(await see("4", until="function▲"))
        last = max(names, key=str.casefold)[:8]
        assert last in first(await see("r", until="function▼"))
        assert "CPU time" in await see("c", until="CPU time")
        assert "GIL held" in await see("g", until="GIL held")
        assert "with idle" in await see("w", "i", until="with idle")
        assert "last 5 min" in await see(until="last 5 min")
        assert "since start" in await see("+", "+", until="since start")
        assert "last 1 s" in await see(*"-----", until="last 1 s")
        await see("+", "+", "+", "slash", *"thi", "enter", until="filter: thi")
        rows = [
            line
            for line in (await see()).splitlines()
            if "program.py" in line and "pid" not in line
        ]
        assert len(rows) == 1 and "third" in rows[0]
        assert "half" in await see("escape", "1", until="half")

    drive([ended], (80, 24), steps)


def test_a_stopped_screen_stands_still_and_goes_on(start) -> None:
    child = start(BUSY, "off", "8MiB")
    process = Process(sonde.open(child.pid).sessions[0])

    async def steps(app: Top, see) -> None:
        await see(until="spin")
        await see("space", until="stopped")
        now = process.now_ns
        await see("l", until="lines · ")  # looks at the same picture in another way
        assert process.now_ns == now
        await see("space", until="rows\n")
        assert process.now_ns > now
        deadline, after = time.monotonic() + TIMEOUT_S, process.now_ns
        while process.now_ns == after:
            assert time.monotonic() < deadline
            await see()

    drive([process], (80, 24), steps, Choice())


def test_a_process_that_ends_leaves_its_last_picture(start) -> None:
    child = start(BUSY, "off", "8MiB")
    process = Process(sonde.open(child.pid).sessions[0])

    async def steps(app: Top, see) -> None:
        await see(until="spin")
        child.kill()
        child.wait()
        seen = await see(until=f"process {child.pid} was killed")
        assert "spin" in seen and "last picture" in seen
        assert "worker-1" in await see("t", until="threads · ")
        await see("q")
        assert app.return_code == 0

    drive([process], (80, 24), steps, Choice())


def test_the_help_is_shown_over_a_living_screen(start) -> None:
    child = start(BUSY, "off", "8MiB")
    process = Process(sonde.open(child.pid).sessions[0])

    async def steps(app: Top, see) -> None:
        await see(until="spin")
        seen = await see("question_mark", until="callers and callees")
        assert max(map(len, seen.splitlines())) <= 80 and "lost" in seen
        now = process.now_ns
        deadline = time.monotonic() + TIMEOUT_S
        while process.now_ns == now:  # a refresh under the help does no harm
            assert time.monotonic() < deadline
            await see()
        assert "spin" in await see("x", until="functions · ")

    drive([process], (80, 24), steps, Choice())


def test_the_ranks_of_a_job_are_rows_and_tabs(start) -> None:
    children = [
        start(BUSY, "off", "8MiB", RANK=str(rank), WORLD_SIZE="3", TORCHELASTIC_RUN_ID="exp")
        for rank in range(3)
    ]
    processes = open_processes(sonde.open("exp").sessions)
    assert [process.session.rank for process in processes] == [0, 1, 2]

    async def steps(app: Top, see) -> None:
        seen = await see(until=r"2 +\d+ +running")
        assert "[rank 0]" in seen and all(str(child.pid) in seen for child in children)
        seen = await see("down", "enter", until=r"\[rank 1\]")
        assert f"pid {children[1].pid}  rank 1/3" in seen and "functions" in seen
        assert f"pid {children[2].pid}" in await see("]", until=r"\[rank 2\]")
        assert f"pid {children[0].pid}" in await see("]", until=r"\[rank 0\]")
        assert f"pid {children[2].pid}" in await see("[", until=r"\[rank 2\]")
        assert "processes" in await see("p", until="main in")

    drive(processes, (80, 24), steps, Choice("processes"))


def test_what_is_cut_says_so_and_wide_signs_count_twice() -> None:
    assert cut("a long name", 6) == "a lon…" and cut("/a/path.py:12", 8, left=True) == "…h.py:12"
    assert cut("7", 3, right=True) == "  7" and cut("ab", 4) == "ab  "
    assert cut("\x1b[31mx", 20).rstrip() == "\\x1b[31mx"
    assert cut("日本語の関数", 7) == "日本語…" and cut("日本語", 3) == "日…"


# ---- the command --------------------------------------------------------------------------------


def test_a_pipe_gets_one_table(ended: Process, sonde_cli) -> None:
    done = sonde_cli("top", ended.session.pid)
    assert done.returncode == 0 and "\x1b" not in done.stdout and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "self_pct",
        "total_pct",
        "self_ns",
        "total_ns",
        "func",
        "file",
        "line",
    ]
    assert lines[1].split()[4] == "spin" and any("half" in line for line in lines)


def test_json_and_csv_hold_the_numbers_of_the_model(ended: Process, sonde_cli) -> None:
    args = ("top", ended.session.pid, "--window", "start", "--weight", "cpu")
    rows = json.loads(sonde_cli(*args, "--format", "json").stdout)
    weighed = ended.weigh(None, "cpu", idle=True)
    expected = {
        tuple(s.unit): s.self_ns for s in shares.list_shares(weighed, weighed.tree.functions)
    }
    assert {(r["func"], r["file"], r["line"]): r["self_ns"] for r in rows} == expected
    lines = csv.DictReader(io.StringIO(sonde_cli(*args, "--format", "csv").stdout))
    found = {(r["func"], r["file"], int(r["line"])): int(r["self_ns"]) for r in lines}
    assert found == expected
    threads = sonde_cli("top", ended.session.pid, "--view", "threads", "--format", "json")
    assert [row["name"] for row in json.loads(threads.stdout)] == ["MainThread"]


def test_a_window_that_is_not_offered_is_refused(ended: Process, sonde_cli) -> None:
    done = sonde_cli("top", ended.session.pid, "--window", "7s")
    assert done.returncode == 2 and "5min" in done.stderr and "Traceback" not in done.stderr


def test_a_recording_without_samples_says_so(run, sonde_cli) -> None:
    code = "import sonde; print(sonde.start(collector='off', source_stack='off'))"
    folder = run(code).stdout.strip()
    done = sonde_cli("top", folder)
    assert done.returncode == 0 and "no stack has been sampled" in done.stderr


def test_textual_is_loaded_by_the_screen_alone(ended: Process, run) -> None:
    code = f"""
import sys
from sonde.cli import main
assert main(["ps"]) == 0 and main(["top", "{ended.session.pid}", "--once"]) == 0
print("textual" in sys.modules)
"""
    assert run(code).stdout.split()[-1] == "False"


def watch_terminal(pid: int, *args: str, keys: bytes = b"q", **env: str) -> str:
    """All that `sonde top` writes to a terminal of 80 by 24 until the keys end it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "sonde", "top", str(pid), *args], stdin=theirs, stdout=theirs,
        stderr=theirs, start_new_session=True, env={**os.environ, "TERM": "xterm-256color", **env},
    )  # fmt: skip
    os.close(theirs)
    drawn, deadline = b"", time.monotonic() + TIMEOUT_S
    while True:
        assert time.monotonic() < deadline, drawn[-2000:]
        if b"self" in drawn and b"quit" in drawn and keys:
            os.write(ours, keys)
            keys = b""
        if select.select([ours], [], [], 0.1)[0]:
            try:
                drawn += os.read(ours, 65536)
            except OSError:
                break
    os.close(ours)
    assert process.wait(TIMEOUT_S) == 0
    return drawn.decode(errors="replace")


def find_colours(drawn: str) -> set[str]:
    """The codes that ask for a colour; 39 and 49 are the terminal's own."""
    codes = {code for found in re.findall(r"\x1b\[([0-9;]*)m", drawn) for code in found.split(";")}
    colours = (*range(30, 39), *range(40, 49), *range(90, 98), *range(100, 108))
    return codes & {str(code) for code in colours}


def test_a_real_terminal_gets_the_screen_and_has_it_back(ended: Process) -> None:
    drawn = watch_terminal(ended.session.pid)
    assert "spin" in drawn and "\x1b[?1049h" in drawn and "\x1b[?1049l" in drawn
    assert find_colours(drawn), "colours, unless they are not wanted"


def test_no_color_means_none(ended: Process) -> None:
    drawn = watch_terminal(ended.session.pid, NO_COLOR="1")
    assert "spin" in drawn and not find_colours(drawn)


def test_once_on_a_terminal_prints_one_table(ended: Process) -> None:
    drawn = watch_terminal(ended.session.pid, "--once", keys=b"")
    assert "self_pct" in drawn and "spin" in drawn and "\x1b[?1049h" not in drawn


def test_reading_needs_no_database_while_the_ring_holds_the_window(ended: Process) -> None:
    def refuse(sql: str) -> list[dict[str, object]]:
        raise AssertionError(sql)

    assert Samples(ended.session, refuse).add_up(ended.find_since(300.0))
