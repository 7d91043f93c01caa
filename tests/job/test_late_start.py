"""A program that a recorded program starts: it is recorded unless it is short and orderly."""

from __future__ import annotations

import os

import pytest

import sonde
from sonde import _delay, environ, settings
from sonde.session import Session, list_sessions

# Starts programs as a recorded program does; each gets its code as an argument.
PARENT = """
import subprocess, sys
import sonde
sonde.start(collector="off")
for code in sys.argv[1:]:
    subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
"""
# Not for ever: if the test fails, nobody ends the program.
WAIT = (
    "import sonde, time\nend = time.monotonic() + 100\n"
    "while sonde.session() is None and time.monotonic() < end: time.sleep(0.01)\n"
)


@pytest.fixture
def record(run):
    """Have a recorded program start programs; return the sessions of these."""

    def record(*codes: str, **env: str) -> list[Session]:
        run(PARENT, *codes, SONDE_COLLECTOR="off", **env)
        return list(list_sessions(os.environ["SONDE_DIR"]))[1:]

    return record


def test_a_short_program_has_no_session(record) -> None:
    # Where the machine is busy, even a short program takes longer than the delay now and then.
    assert len(record(*["pass", "import sys; sys.exit(3)"] * 10)) < 20


def test_a_program_that_waits_has_loaded_next_to_nothing(run) -> None:
    code = "import sys; print(*sorted(name for name in sys.modules if name[:5] == 'sonde'))"
    done = run(PARENT, *[code] * 5)  # where the machine is busy, some have waited long enough
    assert "sonde._delay" in done.stdout.splitlines()


def test_a_program_is_recorded_after_a_while_whether_it_works_or_waits(record) -> None:
    work = WAIT.replace("time.sleep(0.01)", "pass")
    wait = (
        "import threading, sys, time\nend = time.monotonic() + 100\nmain = threading.Event()\n"
        + (
            "def watch():\n import sonde\n"
            " while sonde.session() is None and time.monotonic() < end: time.sleep(0.01)\n"
            " main.set()\n"
            "threading.Thread(target=watch).start()\nmain.wait()\n"
        )
    )
    assert [one.find_state() for one in record(work, wait)] == ["ended", "ended"]


def test_a_program_that_is_importing_the_recorder_meanwhile_is_recorded(record) -> None:
    code = """
import sys
from sonde import _delay
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "sonde.job.table_writers":  # which the recorder imports
            sys.meta_path.remove(self)
            _delay.begin()
sys.meta_path.insert(0, Interrupt())
import sonde.job.recorder
assert sonde.session() is None
"""
    (session,) = record(code + WAIT)
    assert session.find_state() == "ended"


def test_an_exception_is_recorded_although_recording_begins_while_it_is_printed(record) -> None:
    # From Python 3.14 on, printing takes longer than the delay.
    hook = "import sys\ndef hook(*_error):\n    " + WAIT.replace("\n", "\n    ")
    code = hook + "\nsys.excepthook = hook\ndef fail(): raise KeyError('lost')\nfail()"
    (session,) = record(code)
    rows = sonde.Recording([session]).query("SELECT type, func FROM python.exception").to_pylist()
    assert rows == [{"type": "builtins.KeyError", "func": "fail"}]


def test_a_short_program_that_fails_has_a_session_with_its_exception(record) -> None:
    (session,) = record("def fail(): raise KeyError('lost')\nfail()")
    rows = sonde.Recording([session]).query("SELECT type, func FROM python.exception").to_pylist()
    assert rows == [{"type": "builtins.KeyError", "func": "fail"}]


def test_a_short_program_that_uses_sonde_has_a_session(record) -> None:
    (session,) = record("import sonde\nwith sonde.span('short'): pass")
    rows = sonde.Recording([session]).query("SELECT name FROM event.span").to_pylist()
    assert rows == [{"name": "short"}]


def test_a_short_program_that_forks_is_recorded_and_so_is_its_child(record) -> None:
    code = f"import os\nif os.fork() == 0:\n exec({WAIT!r})\nelse:\n os.wait()\n"
    parent, child = record(code)
    assert child.meta.parent == parent.id


def test_the_first_child_of_multiprocessing_ends_in_an_orderly_way(record) -> None:
    code = """
import multiprocessing
def work():
    import sonde
    sonde.mark("here")
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
"""
    parent, child = record(code)
    assert child.meta.parent == parent.id
    assert (parent.find_state(), child.find_state()) == ("ended", "ended")


def test_what_has_to_be_there_at_once_begins_at_once(record) -> None:
    assert len(record("pass", SONDE_SNAPSHOT_SIGNAL="USR1")) == 1


def test_a_program_that_replaces_a_recorded_one_begins_at_once(run) -> None:
    code = """
import os, sys
import sonde
sonde.start(collector="off")
os.execv(sys.executable, [sys.executable, "-c", "pass"])
"""
    run(code, SONDE_COLLECTOR="off")
    assert len(list(list_sessions(os.environ["SONDE_DIR"]))) == 2


def test_a_rank_that_a_launcher_starts_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell_children() -> None:
        environ.follow_children("/", settings.Values({}, {}))
        monkeypatch.setenv("SONDE_PARENT", "1" + os.environ["SONDE_PARENT"].lstrip("0123456789"))

    monkeypatch.setenv("SONDE", "1")
    monkeypatch.setenv("SONDE_PARENT", "")  # so that it is put back
    tell_children()
    assert _delay.may_wait()
    monkeypatch.setenv("RANK", "0")
    assert not _delay.may_wait()
    tell_children()  # what the rank itself starts
    assert _delay.may_wait()
