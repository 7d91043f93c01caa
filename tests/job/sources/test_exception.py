"""python.exception: what nothing in the program has caught, and what the program prints then."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import sonde
from sonde.job.uncaught import Uncaught
from sonde.session import list_sessions

START = "import sonde\nsonde.start(collector='off')\n"
FAILS = """
def load(path):
    shards = [1, 2]
    raise ValueError(f"no shard in {path}")
def work():
    try:
        {}["weight"]
    except KeyError as error:
        raise RuntimeError("cannot load") from error
"""


def read(root: Path, sql: str) -> list[dict[str, object]]:
    (session,) = list_sessions(str(root))
    return sonde.open(session.folder).query(sql).to_pylist()


def test_what_ends_the_program_is_a_row_and_the_program_ends_as_without_us(run, root) -> None:
    program = FAILS + "load('/data')\n"
    bare = run("import sonde\n\n" + program, check=False)
    done = run(START + program, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, bare.stdout, bare.stderr)
    (row,) = read(root, "SELECT * FROM python.exception")
    assert row["thread"] == row["pid"]
    assert [row[name] for name in ("number", "type", "message", "func", "missed")] == [
        1, "builtins.ValueError", "no shard in /data", "load", 0
    ]  # fmt: skip
    frames = read(root, "SELECT * FROM python.exception_frame ORDER BY depth")
    assert [(one["number"], one["func"], one["lineno"]) for one in frames] == [
        (1, "load", row["lineno"]), (1, "<module>", 12)
    ]  # fmt: skip
    assert {one["locals"] for one in frames} == {None}


def test_stacks_of_the_ended_program_show_what_it_raised(run, root, sonde_cli) -> None:
    run(START + FAILS + "load('/data')\n", check=False)
    (session,) = list_sessions(str(root))
    assert "ValueError" in sonde_cli("ps").stdout.split()
    head, *lines = sonde_cli("stacks", session.folder).stdout.splitlines()
    assert "ended with an uncaught ValueError: no shard in /data (exit code 1)" in head
    assert lines[1] == "Raised ValueError: no shard in /data"
    assert lines[2].split()[0] == "load" and lines[3].split()[0] == "<module>"
    (row,) = read(root, "SELECT exit_code, exit_signal, exit_reason FROM sonde.session")
    assert (
        row["exit_code"] == 1 and row["exit_signal"] is None and "ValueError" in row["exit_reason"]
    )


def test_locals_are_there_if_asked_for_and_a_cause_is_named(run, root) -> None:
    start = START.replace("'off'", "'off', exception_locals=True")
    run(start + FAILS + "def call():\n    n = 7\n    work()\ncall()", check=False)
    (row,) = read(root, "SELECT type, message, cause FROM python.exception")
    assert row == {
        "type": "builtins.RuntimeError", "message": "cannot load", "cause": "builtins.KeyError: 'weight'"
    }  # fmt: skip
    frames = read(root, "SELECT func, locals FROM python.exception_frame ORDER BY depth")
    known = {one["func"]: json.loads(str(one["locals"])) for one in frames}
    assert known["call"] == {"n": "7"}
    assert known["<module>"] == {}


def test_exceptions_of_threads_are_rows_too_and_each_hook_is_called_once(run, root) -> None:
    done = run(
        START
        + "import threading\n"
        + FAILS
        + """
seen = []
def hook(args):
    seen.append(args.exc_type.__name__)
    before(args)
before, threading.excepthook = threading.excepthook, hook
for target in (work, lambda: exit(3)):
    thread = threading.Thread(target=target)
    thread.start(); thread.join()
print(seen)
"""
    )
    assert done.stdout == "['RuntimeError', 'SystemExit']\n"
    assert done.stderr.count("RuntimeError: cannot load") == 1
    (row,) = read(root, "SELECT thread <> pid AS other, type FROM python.exception")
    assert row == {"other": True, "type": "builtins.RuntimeError"}


def test_the_hook_of_threads_is_there_before_they_are_and_goes_again(run) -> None:
    run(
        """
import _thread, sys
first = _thread._excepthook
assert "threading" not in sys.modules
"""
        + START
        + """
import threading
assert threading.excepthook is threading.__excepthook__ is not first
sonde.stop()
assert threading.excepthook is threading.__excepthook__ is _thread._excepthook is first
"""
    )


def test_a_hook_that_the_program_sets_later_stays_and_what_it_hides_is_recorded(run, root) -> None:
    done = run(
        START + FAILS + "import sys\nsys.excepthook = lambda *args: print('mine')\nload('/data')\n",
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "mine\n", "")
    assert [row["func"] for row in read(root, "SELECT func FROM python.exception")] == ["load"]


def test_an_exception_that_is_only_kept_for_a_debugger_did_not_end_the_program(run, root) -> None:
    kept = """
import sys
try: load("/data")
except ValueError as error: sys.last_exc = sys.last_value = error  # as pytest does
sys.exit(1)
"""
    run(START + FAILS + kept, check=False)
    assert read(root, "SELECT * FROM python.exception") == []
    (row,) = read(root, "SELECT exit_code, exit_reason FROM sonde.session")
    assert row["exit_code"] == 1 and "ValueError" not in row["exit_reason"]


def test_stop_gives_the_hooks_back(root) -> None:
    import sys
    import threading

    before = sys.excepthook, threading.excepthook
    sonde.start(collector="off")
    assert sys.excepthook is not before[0]
    sonde.stop()
    assert (sys.excepthook, threading.excepthook) == before


def test_a_hook_in_front_of_ours_is_left_there_and_ours_serves_the_next_recording(
    run, root
) -> None:
    run(
        START
        + FAILS
        + """
import sys
ours = sys.excepthook
sys.excepthook = lambda *args: ours(*args)
sonde.stop()
assert sys.excepthook is not ours
sonde.start(collector="off")
load("/data")
""",
        check=False,
    )
    newest = max(list_sessions(str(root)), key=lambda one: one.folder)
    found = sonde.open(newest.folder).query("SELECT func FROM python.exception").to_pylist()
    assert found == [{"func": "load"}]


def test_no_code_of_the_program_is_run_and_there_are_few_rows_in_an_hour(run, root) -> None:
    done = run(
        START
        + """
import threading
from sonde.job.uncaught import uncaught
class Loud(Exception):
    def __str__(self): print("asked"); return "asked"
def fail(): raise Loud("plain", 7, [1])
threading.excepthook = uncaught._hooks["threading"].listener
for _ in range(70):
    thread = threading.Thread(target=fail)
    thread.start(); thread.join()
"""
    )
    assert done.stdout == ""
    rows = read(root, "SELECT type, message FROM python.exception")
    assert len(rows) == 60
    assert rows[0] == {"type": "__main__.Loud", "message": "'plain', 7, [1]"}


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="multiprocessing forgets it before any of our code can run"
)
def test_an_exception_of_a_multiprocessing_child_is_in_its_recording(run, root) -> None:
    run(
        "import multiprocessing\n"
        + FAILS
        + """
if __name__ == "__main__":
    import sonde
    sonde.start(collector="off")
    child = multiprocessing.get_context("fork").Process(target=load, args=("/data",))
    child.start(); child.join()
"""
    )
    found = [
        row
        for one in list_sessions(str(root))
        for row in sonde.open(one.folder).query("SELECT func FROM python.exception").to_pylist()
    ]
    assert found == [{"func": "load"}]


CONSOLE = """
import code, sys
import sonde
if sys.argv[1] == "recorded": sonde.start(collector=False)
class Console(code.InteractiveInterpreter):
    def write(self, data): print("console:", data.splitlines()[-1])
Console().runsource("1 / 0")
try: 1 / 0
except ZeroDivisionError: sys.__excepthook__(*sys.exc_info())
print(sys.excepthook is sys.__excepthook__)
sonde.stop()
print(sys.excepthook is sys.__excepthook__, type(sys.excepthook).__name__)
"""


def test_a_console_of_the_program_prints_where_it_did(run, root: Path) -> None:
    bare, recorded = run(CONSOLE, "bare"), run(CONSOLE, "recorded")
    assert recorded.stdout == bare.stdout and "console: ZeroDivisionError" in bare.stdout
    assert recorded.stderr == bare.stderr
    # What the program catches and shows itself is not uncaught.
    (session,) = list_sessions(str(root))
    assert sonde.open(session.folder).query("SELECT * FROM python.exception").num_rows == 0


def test_what_is_handled_when_recording_begins_is_not_taken_for_one_that_was_seen() -> None:
    covered = Uncaught()

    def listener(_error: object, _trace: object) -> None: ...

    try:
        raise ValueError
    except ValueError as error:
        covered.subscribe(listener)
        assert covered.seen != id(error)
    finally:
        covered.unsubscribe(listener)
