"""`sonde tree`: the call tree as text, CSV and JSON."""

from __future__ import annotations

import argparse
import io
import json
import re

from sonde.analysis.code_tree import read_tree
from sonde.analysis.profile import Profile, Selection
from sonde.analysis.window import find_window
from sonde.cli import main
from sonde.cli import tree as tree_command
from sonde.cli._tree_text import _cut_name, draw_nodes
from support.handmade_stacks import FakeRecording

PROGRAM = """
import json, time
def parse(text):
    return json.loads(text)
def work():
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        parse(text)
    time.sleep(0.3)
text = json.dumps(list(range(50000)))
work()
"""


def test_all_commands_call_a_file_by_the_same_name(
    run, root, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the program begins
    run(PROGRAM, SONDE="1", SONDE_COLLECTOR="off")
    for command in ("tree", "top", "advise"):
        assert main([command, "all"]) == 0
        text = capsys.readouterr().out
        assert "program.py:" in text and f"{tmp_path.name}/program.py:" not in text, text


def test_without_a_target_it_is_about_what_was_begun_last(run, root, capsys) -> None:
    assert main(["tree"]) == 3
    assert "nothing is recorded yet" in capsys.readouterr().err
    run(PROGRAM.replace("def parse", "def parse_first").replace(" parse(", " parse_first("),
        SONDE="1", SONDE_COLLECTOR="off")  # fmt: skip
    run(PROGRAM, SONDE="1", SONDE_COLLECTOR="off")
    for command in ("tree", "advise"):
        assert main([command]) == 0
        text = capsys.readouterr().out
        assert "parse" in text and "parse_first" not in text, text


def test_it_names_the_functions_the_library_call_and_the_wait(run, root, capsys) -> None:
    run(PROGRAM, SONDE="1", SONDE_COLLECTOR="off")
    assert main(["tree", "all"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("program.py (") and " working (" in text
    assert any("json.loads" in line and "program.py:4" in line for line in text.splitlines()), text
    assert main(["tree", "all", "--sort", "waiting", "--limit", "3"]) == 0
    text = capsys.readouterr().out
    assert "time.sleep(0.3)" in text, text
    assert main(["tree", "all", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    (work,) = [row for row in rows if row["name"] == "work"]
    assert work["owner"] == "mine" and work["total_s"] >= 0.8
    assert abs(work["working_s"] + work["waiting_s"] - work["total_s"]) < 1e-5


def test_a_narrow_terminal_cuts_names_but_no_number_and_no_line_is_too_wide(monkeypatch) -> None:
    site = "/v/lib/python3.12/site-packages"
    recording = FakeRecording()
    for thread in range(100, 149):
        serve = ("ThreadingMixIn.process_request_thread", "/opt/py/lib/python3.12/socketserver.py", 9, 1)  # fmt: skip
        get = ("ForwardManyToOneDescriptor.__get__", f"{site}/django/db/models/fields/related.py", 9, 1)  # fmt: skip
        execute = ("SQLiteCursorWrapper.execute", f"{site}/django/db/backends/sqlite3/base.py", 360, 1)  # fmt: skip
        path = [serve, ("books", "/job/site_.py", 23, 22), get, execute]
        recording.see(path, 10, cpu=5, thread=thread).see(path, 20, cpu=0, thread=thread)
    profile = Profile(recording, Selection(find_window(recording, None, None)))
    tree = read_tree(profile, hot_calls=True)
    monkeypatch.setenv("COLUMNS", "80")
    file = io.StringIO()
    file.isatty = lambda: True  # type: ignore[method-assign]
    draw_nodes(tree, tree.list_nodes(), tree_command._show_numbers, tree_command._name, file)
    lines = [re.sub(r"\x1b\[\d+m", "", line) for line in file.getvalue().splitlines()]
    assert len(lines) == 4 and max(map(len, lines)) <= 80, lines
    assert all(" \u00d749" in line and line == line.rstrip() for line in lines), lines


def test_a_deep_tree_keeps_its_names_and_the_numbers_of_its_lines(monkeypatch) -> None:
    site = "/v/lib/python3.12/site-packages/gunicorn/workers"
    recording = FakeRecording()
    deep = [(f"Worker.step_{n}", f"{site}/asynchronous_{n}.py", 1000 + n, 9) for n in range(14)]
    for last in ("render", "fetch"):
        recording.see([*deep, (last, "/job/wsgi.py", 7, 6), ("wait", "/job/wsgi.py", 3, 2)], 10)
    profile = Profile(recording, Selection(find_window(recording, None, None)))
    tree = read_tree(profile, all_frames=True)
    monkeypatch.setenv("COLUMNS", "80")
    file = io.StringIO()
    file.isatty = lambda: True  # type: ignore[method-assign]
    draw_nodes(tree, tree.list_nodes(), tree_command._show_numbers, tree_command._name, file)
    lines = [re.sub(r"\x1b\[\d+m", "", line) for line in file.getvalue().splitlines()]
    assert len(lines) == 18 and max(map(len, lines)) <= 80, lines
    for n, line in enumerate(lines[:14]):
        assert f"Worker.step_{n}" in line and line.endswith(f".py:{1000 + n}"), lines
    # What a function calls alone begins no further to the right; where the tree parts, it does.
    begins = {line.index("Worker.step") for line in lines[1:14]}
    assert len(begins) == 1, lines
    shown = [line[min(begins) :].split("  ")[0] for line in lines[14:]]
    assert shown == ["├ render", "│ └ wait", "└ fetch", "└ wait"], lines


def test_a_compiled_function_that_takes_much_of_the_time_is_told_with_what_shows_more() -> None:
    site = "/v/lib/python3.12/site-packages/mypy/__main__.py"
    stack = [("<module>", site, 52, 1), ("console_entry", site, 16, 14)]

    def show(call: str) -> str:
        recording = FakeRecording().see(stack, 50, wall=50, call=call)
        profile = Profile(recording, Selection(find_window(recording, None, None)))
        tree, text = read_tree(profile, hot_calls=True), io.StringIO()
        args = argparse.Namespace(sort="total")
        tree_command._draw(tree, tree.list_nodes(), [], args, text)
        return text.getvalue()

    assert "\nmypy.main.main is compiled" in show("mypy.main.main")
    assert "is compiled" not in show("time.sleep")


def test_the_first_lines_say_what_was_waited_for_and_who_had_the_processors() -> None:
    def show(recording: FakeRecording) -> str:
        profile = Profile(recording, Selection(find_window(recording, None, None)))
        return "\n".join(tree_command._describe(read_tree(profile)))

    slept = FakeRecording().see("work|sleep", 10, cpu=0, wait="sleep")
    assert show(slept).endswith("10.0 ms waiting for the end of a sleep")
    mixed = (
        FakeRecording()
        .see("work", 10, cpu=4)
        .see("work|sleep", 40, wall=30, cpu=0, wait="sleep")
        .see("work", 60, wall=20, cpu=0, wait="gil", thread=101)
    )
    mixed.samples[0]["queue_ns"] = 6 * 10**6
    first, second = show(mixed).splitlines()
    assert ", 2 threads: 10.0 ms working (4.00 ms of CPU), 50.0 ms waiting (" in first
    assert first.endswith("(30.0 ms for the end of a sleep, 20.0 ms for the GIL)")
    assert second.startswith("(for 6.00 ms of the work it was ready to run, but others had")


def test_a_name_without_room_keeps_its_last_part() -> None:
    name = "\u2502 \u2514 contextlib._GeneratorContextManager.__exit__"
    assert _cut_name(name, 32) == "\u2502 \u2514 contextlib._Genera\u2026.__exit__"
    assert _cut_name(f"{name} \u00d73", 32).endswith("\u2026.__exit__ \u00d73")
    assert _cut_name("(this line itself) and more", 20) == "(this line itself) \u2026"


def test_what_a_line_waits_for_stands_with_its_name_or_not_at_all(monkeypatch) -> None:
    call = ("work", "/job/a.py", 7, 6)
    recording = (
        FakeRecording().see([call], 10, cpu=0, wait="gil").see([call, ("f", "/job/a.py", 9, 8)], 40)
    )
    profile = Profile(recording, Selection(find_window(recording, None, None)))
    tree = read_tree(profile)

    def draw(columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        file = io.StringIO()
        file.isatty = lambda: True  # type: ignore[method-assign]
        draw_nodes(tree, tree.list_nodes(), tree_command._show_numbers, tree_command._name, file,
                   tree_command._name_wait)  # fmt: skip
        return file.getvalue()

    assert "(this line itself, waiting for the GIL)" in draw(100)
    narrow = draw(62)
    assert "(this line itself)" in narrow and "itself, waiting" not in narrow, narrow
