"""sonde top: the screen shows what is measured, and survives what it watches."""

from __future__ import annotations

import asyncio
import copy
import csv
import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Awaitable, Callable

import pytest

import sonde
from conftest import TIMEOUT_S
from sonde.cli.top import _draw
from sonde.session import Session, list_sessions
from sonde.tui.grid import cut
from sonde.tui.page import Choice, list_own_shares, make_page, measure
from sonde.tui.process import TopProcess, open_processes
from sonde.tui.screen import Top
from support.watched_process import BUSY, SHARES
from tui.test_team import WORKERS


@pytest.fixture
def ended(run) -> TopProcess:
    """A process that ran for a second and has ended; its rows are in the rings."""
    return TopProcess(Session(run(SHARES, "off", "1.5").stdout.strip()))


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
    processes: list[TopProcess],
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
def test_the_views_show_what_the_model_says(ended: TopProcess, size) -> None:
    async def steps(app: Top, see) -> None:
        seen = await see(until="half")
        assert max(map(len, seen.splitlines())) <= size[0] and len(seen.splitlines()) <= size[1]
        assert f"pid {ended.session.pid}" in seen and "sampled every 1 ms" in seen and "GIL" in seen
        rows = make_page(app.choice, ended, [ended]).rows
        shown = [line for line in seen.splitlines() if re.search(r"\d\.\d +\d+\.\d ", line)]
        room = app.grid.size.height - 1
        assert len(shown) == min(len(rows), room) and shown[0].split()[-5:-2] == list(
            rows[0].cells[:3]
        )
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
    process = TopProcess(sonde.open(child.pid).sessions[0])

    async def steps(app: Top, see) -> None:
        seen = await see("s", until=r"stacks of 5 threads, now(?s:.*)● MainThread")
        lines = seen.splitlines()
        root = next(at for at, line in enumerate(lines) if line.startswith("<module>"))
        assert lines[root + 1].startswith("work")
        assert await see("end", until=r"[├└] ● worker-2 \(\w+\)|● sleeper \((idle|running)\)")
        assert await see("slash", *"sleeper", "enter", until=r"sleep_long(?s:.*)● sleeper")

    drive([process], size, steps, Choice())


def test_keys_sort_weigh_widen_and_filter(ended: TopProcess) -> None:
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
    process = TopProcess(sonde.open(child.pid).sessions[0])

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
    process = TopProcess(sonde.open(child.pid).sessions[0])

    async def steps(app: Top, see) -> None:
        await see(until="spin")
        child.kill()
        child.wait()
        seen = await see(until=f"process {child.pid} was ")
        assert "spin" in seen and "last state" in seen
        assert "worker-1" in await see("t", until="threads · ")
        await see("q")
        assert app.return_code == 0

    drive([process], (80, 24), steps, Choice())


def test_the_help_is_shown_over_a_living_screen(start) -> None:
    child = start(BUSY, "off", "8MiB")
    process = TopProcess(sonde.open(child.pid).sessions[0])

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
        assert "3 processes" in seen and all(str(child.pid) in seen for child in children)
        seen = await see("down", "enter", until=r"\[rank 1\]")
        assert f"pid {children[1].pid}  rank 1/3" in seen and "functions" in seen
        assert f"pid {children[2].pid}" in await see("]", until=r"\[rank 2\]")
        assert f"pid {children[0].pid}" in await see("]", until=r"\[rank 0\]")
        assert f"pid {children[2].pid}" in await see("[", until=r"\[rank 2\]")
        assert "processes" in await see("p", until="main in")
        assert "3 processes" in await see(until="CPU")
        assert "pid " not in (await see("f", until="the sum of 3 processes")).splitlines()[0]

    drive(processes, (80, 24), steps, Choice("processes"))


def test_what_is_cut_says_so_and_wide_signs_count_twice() -> None:
    assert cut("a long name", 6) == "a lon…" and cut("/a/path.py:12", 8, left=True) == "…h.py:12"
    assert cut("7", 3, right=True) == "  7" and cut("ab", 4) == "ab  "
    assert cut("\x1b[31mx", 20).rstrip() == "\\x1b[31mx"
    assert cut("日本語の関数", 7) == "日本語…" and cut("日本語", 3) == "日…"


# ---- the command --------------------------------------------------------------------------------


def test_a_pipe_gets_one_table(ended: TopProcess, sonde_cli) -> None:
    done = sonde_cli("top", ended.session.pid)
    assert done.returncode == 0 and "\x1b" not in done.stdout and done.stderr == ""
    told, *lines = done.stdout.splitlines()
    assert told.startswith(f"pid {ended.session.pid}, last ") and " % waiting" in told
    assert lines[0].split() == ["self", "%", "total", "%", "self", "function", "where"]
    assert lines[1].split()[3] == "spin" and any("half" in line for line in lines)


def test_json_and_csv_hold_the_numbers_of_the_model(ended: TopProcess, sonde_cli) -> None:
    args = ("top", ended.session.pid, "--window", "start", "--by", "cpu")
    rows = json.loads(sonde_cli(*args, "--format", "json").stdout)
    weighed = ended.weigh(None, "cpu", idle=True)
    found = list_own_shares(Choice("functions", "cpu", None, True), weighed)
    expected = {tuple(share.unit): share.self_ns for share in found}
    assert {(r["func"], r["file"], r["line"]): r["self_ns"] for r in rows} == expected
    lines = csv.DictReader(io.StringIO(sonde_cli(*args, "--format", "csv").stdout))
    assert {(r["func"], r["file"], int(r["line"])): int(r["self_ns"]) for r in lines} == expected
    threads = sonde_cli("top", ended.session.pid, "--view", "threads", "--format", "json")
    assert [row["name"] for row in json.loads(threads.stdout)] == ["MainThread"]


def test_since_the_start_hides_idle_time_as_every_window_does(ended: TopProcess) -> None:
    hidden = measure(Choice("functions", "wall", None, False), ended)
    recent = measure(Choice("functions", "wall", 300.0, False), ended)
    assert 0 < hidden.whole == recent.whole
    assert hidden.whole <= measure(Choice("functions", "wall", None, True), ended).whole


def test_any_window_that_the_samples_are_kept_for_can_be_asked_for(
    ended: TopProcess, sonde_cli
) -> None:
    args = ("top", ended.session.pid, "--idle", "--format", "csv")
    assert sonde_cli(*args, "--since", "299s").stdout == sonde_cli(*args, "--window", "5min").stdout
    for window in ("7min", "0.5s", "soon"):
        done = sonde_cli(*args, "--window", window)
        assert done.returncode == 2 and "--since … --until" in done.stderr


def test_a_recording_without_samples_says_so(run, sonde_cli) -> None:
    code = "import sonde; print(sonde.start(collector='off', source_stack='off'))"
    folder = run(code).stdout.strip()
    done = sonde_cli("top", folder)
    assert done.returncode == 0 and "no stack has been sampled" in done.stderr


def test_textual_is_loaded_by_the_screen_alone(ended: TopProcess, run) -> None:
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


def test_a_real_terminal_gets_the_screen_and_has_it_back(ended: TopProcess) -> None:
    drawn = watch_terminal(ended.session.pid)
    assert "spin" in drawn and "\x1b[?1049h" in drawn and "\x1b[?1049l" in drawn
    assert find_colours(drawn), "colours, unless they are not wanted"


def test_no_color_means_none(ended: TopProcess) -> None:
    drawn = watch_terminal(ended.session.pid, NO_COLOR="1")
    assert "spin" in drawn and not find_colours(drawn)


def test_once_on_a_terminal_prints_one_table(ended: TopProcess) -> None:
    drawn = watch_terminal(ended.session.pid, "--once", keys=b"")
    assert "total %" in drawn and "spin" in drawn and "\x1b[?1049h" not in drawn


def test_a_process_that_is_not_recorded_is_looked_at_and_left_as_it_was(
    start, root, sonde_cli
) -> None:
    child = start(
        "def spin():\n    while True: sum(range(1000))\nprint('ready', flush=True)\nspin()"
    )
    shown = sonde_cli("top", str(child.pid), "--once", "--window", "1s").stdout
    assert "spin" in shown and "program0.py:" in shown and "attached.py" not in shown, shown
    assert child.poll() is None and not list(list_sessions(str(root)))


def test_a_table_since_the_start_of_a_long_program_says_what_it_is_about() -> None:
    day = copy.copy(WORKERS[0])
    day.age_s, day.find_cpu_pct = 86400.0, lambda _window_s: 3.0  # type: ignore[attr-defined]
    file = io.StringIO()
    _draw([day], Choice("functions", "wall", None, idle=True), file)  # type: ignore[list-item]
    head, _, table = file.getvalue().partition("\n\nsince start\n")
    assert head.startswith("pid 1, last 5 min: ")
    assert table.startswith("self %")
