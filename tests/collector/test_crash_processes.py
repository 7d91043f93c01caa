"""Processes that unwind what programs have left: what they say, and when none can be started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde import launch
from sonde.collector.companions import _Companion
from sonde.collector.crash_processes import CrashProcesses
from sonde.collector.loop import Collector, Watched
from sonde.collector.native_process import NativeProcesses
from sonde.collector.process_end import KillCounts
from sonde.collector.sensors._files import Reader
from sonde.session import Session, crash_file, files, list_sessions
from sonde.session.ending import find_end_wall_ns

WAIT = """
import sonde, time
sonde.start(collector="off")
print("ready", flush=True)
time.sleep(300)
"""
REMOVE = f"import os, sys; os.remove(os.path.join(sys.argv[2], {crash_file.NAME!r}))"


@pytest.fixture
def session(start) -> Session:
    """A session whose program a fault has ended."""
    process = start(WAIT)
    process.kill()
    process.wait()
    (found,) = list_sessions(os.environ["SONDE_DIR"])
    Path(found.path(crash_file.NAME)).write_bytes(b"")
    return found


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Whoever is started runs this code instead."""

    def use(code: str) -> None:
        begin = [os.fsencode(word) for word in (sys.executable, "-c", code)]

        def make(*args: str) -> list[bytes]:
            return [*begin, *map(os.fsencode, args)]

        monkeypatch.setattr(launch, "make_command", make)

    return use


def refuse_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There can be no more processes, once."""
    real = subprocess.Popen

    def refuse(*_args: object, **_more: object) -> None:
        monkeypatch.setattr(subprocess, "Popen", real)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def unwind(session: Session) -> list[dict[str, object]]:
    """Wait until the session is given back, and return what was noted."""
    target, crashes = Watched(session, KillCounts(Reader())), CrashProcesses[Watched]()
    assert crashes.take(target)
    wait_for(lambda: crashes.give_back() == [target])
    assert not crashes.is_busy and not crashes.count()
    sql = "FROM sonde.source WHERE source = 'stack.crash'"
    return sonde.open(session.folder).query(sql).to_pylist()


def test_however_much_it_says_it_is_waited_for_and_the_program_ended_when_it_did(
    session: Session, say: Callable[[str], None]
) -> None:
    end_ns, begun_ns = find_end_wall_ns(session), time.time_ns()
    assert end_ns < begun_ns
    say(f"{REMOVE}\nfor n in range(50_000): print('note', n)")  # more than a pipe holds
    (row,) = unwind(session)
    assert row["state"] == "on" and str(row["detail"]).startswith("note 0; note 1; ")
    assert find_end_wall_ns(session) == end_ns


def test_one_that_fails_says_why_at_last(session: Session, say: Callable[[str], None]) -> None:
    say("import sys; sys.stderr.write('a warning\\n'); sys.exit('there is no libdw')")
    (row,) = unwind(session)
    assert (row["state"], row["detail"]) == ("unavailable", "there is no libdw")
    assert not os.path.exists(session.path(crash_file.NAME))


def test_it_is_started_later_where_no_process_can_be_started_now(
    session: Session, say: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(f"{REMOVE}\nprint('a note')")
    refuse_once(monkeypatch)
    (row,) = unwind(session)
    assert (row["state"], row["detail"]) == ("on", "a note")


def test_where_no_process_can_ever_be_started_it_says_so_once_and_ends(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, clock = [0], [0.0]

    def refuse(*_args: object, **_more: object) -> None:
        tries[0] += 1
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    target = Watched(session, KillCounts(Reader()))
    crashes = CrashProcesses[Watched](lambda: clock[0])
    assert crashes.take(target)
    while not crashes.give_back() and clock[0] < 1000:
        clock[0] += 0.2
    assert not crashes.is_busy and 60 < clock[0] < 150 and tries[0] < 15
    sql = "FROM sonde.source_log WHERE source = 'stack.crash'"
    (row,) = sonde.open(session.folder).query(sql).to_pylist()
    assert (row["state"], row["detail"]) == (
        "unavailable", "no process could be started for 60 s: Too many open files",
    )  # fmt: skip
    assert not os.path.exists(session.path(crash_file.NAME))


def test_a_session_that_finds_no_room_to_be_sealed_is_sealed_later(
    session: Session, say: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(REMOVE)
    real, full = Watched.seal, [OSError(28, "No space left on device")]

    def seal(self: Watched) -> None:
        if full:
            raise full.pop()
        real(self)

    monkeypatch.setattr(Watched, "seal", seal)
    collector = Collector(os.path.dirname(session.folder))

    def is_sealed() -> bool:
        collector.step(time.monotonic())
        return session.read_sealed() is not None

    wait_for(is_sealed)
    assert not full


def test_so_are_those_that_know_machine_code(
    start, say: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(WAIT)
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    Path(session.path(files.MACHINE_CODE)).touch()
    target, native = Watched(session, KillCounts(Reader())), NativeProcesses()
    say("import sys; sys.stdin.read()")
    refuse_once(monkeypatch)
    native.keep([target])
    assert native.count() == 0
    native.keep([target])
    assert native.count() == 1
    native.keep([])


def test_so_is_a_companion_after_a_pause(
    say: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    say("import sys; sys.stdin.read()")
    refuse_once(monkeypatch)
    one = _Companion()
    one.start(launch.make_command(""), 10.0)
    assert not one.is_running and not one.is_due(10.5) and one.is_due(12.0)
    one.start(launch.make_command(""), 12.0)
    assert one.is_running
    one.end()


def test_without_a_collector_a_list_of_the_recordings_has_them_unwound(
    session: Session, sonde_cli: Callable
) -> None:
    """The copies may hold secrets: nobody should have to ask for stacks first."""
    told = sonde_cli("ps").stdout
    assert str(session.pid) in told
    assert not os.path.exists(session.path(crash_file.NAME))
