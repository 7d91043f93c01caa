"""How a process ended, as others see it: a signal, a code, a lack of memory."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from conftest import wait_for
from sonde.collector.process_end import KillCounts, ProcessEnd
from sonde.collector.sensors._files import Reader
from sonde.session import Session, kernel_kills, list_sessions
from sonde.session.ending import Ending, find_ending
from sonde.session.process import WHOLE_MACHINE

WAIT = """
import sonde, time
sonde.start(collector="off")
print("ready", flush=True)
while True:
    time.sleep(1)  # a signal that comes just before the sleep does not end it: Python sees it afterwards
"""
TOLD = (
    """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit("the reason"))
"""
    + WAIT
)
# It ends as soon as its collector was started, and long before that has imported anything.
EARLY = """
import os, sonde
sonde.start(collector="on")
def is_started():
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read()
        except OSError:
            continue
        if b"collector.loop" in words and os.fsencode(os.environ["SONDE_DIR"]) in words:
            return True
while not is_started():
    pass
os.kill(os.getpid(), 9)
"""
IS_WHOLE = os.stat("/proc/self/ns/pid").st_ino == WHOLE_MACHINE
TELLS_LATER = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15)


class Counts:
    """A machine on which memory runs out, or does not, and on which SIGKILL ends processes."""

    starts_before = 0

    def __init__(self, before: tuple[int, ...], after: tuple[int, ...], killed: int = 1) -> None:
        self.now, self.after, self.killed = before, after, killed

    def begin(self) -> None:
        self.now = self.after

    def find_folder(self, _pid: int) -> None:
        return None

    def read(self, _folder: object) -> tuple[int, ...]:
        return self.now

    def count_killed(self, _folder: object) -> int:
        return self.killed


@pytest.fixture
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's log may not be read."""
    monkeypatch.setattr(kernel_kills, "_LOG", "/nonexistent")
    monkeypatch.setattr(kernel_kills, "_read", None)


def watch(counts) -> tuple[Session, ProcessEnd]:
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    end = ProcessEnd(session, counts)
    assert find_ending(session) is None
    return session, end


def see_end(session: Session, end: ProcessEnd) -> Ending:
    wait_for(lambda: not session.is_alive())
    wait_for(end.write)
    found = find_ending(session)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("after", "killed", "word"),
    [
        ((4, 2, 9), 1, "SIGKILL"),
        ((5, 2, 9), 1, "out of memory"),
        ((5, 2, 12), 1, "out of memory"),
        ((5, 2, 12), 2, "SIGKILL"),  # of two that SIGKILL has ended, nobody knows which it was
        ((6, 2, 12), 2, "out of memory"),
        ((5, 3, 12), 2, "out of memory"),  # the whole cgroup
    ],
)
def test_a_killed_process_says_by_what(
    start, no_log: None, after: tuple[int, ...], killed: int, word: str
) -> None:
    process = start(WAIT)
    session, end = watch(Counts((4, 2, 9), after, killed))
    os.kill(process.pid, signal.SIGKILL)  # nobody has waited for it yet
    found = see_end(session, end)
    assert (found.signal, found.code, found.word) == ("SIGKILL", None, word)
    assert ("its cgroup was" in found.sentence) == (after[2] > 9)
    assert ("perhaps" in found.sentence) == (killed == 2 and after[:2] == (5, 2))


def test_the_machines_own_counters_are_read(start) -> None:
    process = start(WAIT)
    session, end = watch(KillCounts(Reader()))
    process.kill()
    process.wait()
    found = see_end(session, end)  # only newer kernels tell the signal now
    assert (found.state, found.out_of_memory) == ("killed", None)


@pytest.mark.skipif(not IS_WHOLE, reason="a container's pids are not those of the kernel's log")
@pytest.mark.parametrize("whose", ["Memory cgroup out", "Out"])
def test_the_kernels_log_says_it_where_the_collector_was_killed_first(
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    process = start(WAIT)
    process.kill()
    process.wait()
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    log, others, week_us = tmp_path / "kmsg", "started a thing", 7 * 24 * 3600 * 10**6
    now_us = time.monotonic_ns() // 1000
    monkeypatch.setattr(kernel_kills, "_LOG", str(log))
    for pid, at_us, word in [
        (process.pid, now_us + week_us, "killed"),
        (process.pid + 1, now_us, "killed"),
        (process.pid, now_us, "out of memory"),
    ]:
        text = f"{whose} of memory: Killed process {pid} (python) total-vm:1kB"
        log.write_text(f"6,1,{at_us},-;{others}\n3,2,{at_us},-;{text}\n")
        monkeypatch.setattr(kernel_kills, "_read", None)
        found = find_ending(session)
        assert found is not None and found.word == word
    assert ProcessEnd(session, KillCounts(Reader())).write()
    log.unlink()  # a later reader may not read it, or it has forgotten
    monkeypatch.setattr(kernel_kills, "_read", None)
    found = find_ending(session)
    assert found is not None and found.word == "out of memory"
    assert found.signal == "SIGKILL" and ("its cgroup" in found.sentence) == ("cgroup" in whose)


@pytest.mark.skipif(not TELLS_LATER, reason="this kernel forgets processes that were waited for")
def test_one_that_is_killed_before_its_collector_can_look_says_by_what(start) -> None:
    process = start(EARLY, ready=False)
    assert process.wait(60) == -signal.SIGKILL
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    wait_for(lambda: session.read_sealed() is not None)
    ending = find_ending(session)
    assert ending is not None and ending.signal == "SIGKILL"


def test_what_sys_exit_was_told_is_kept_when_the_session_is_sealed_first(start) -> None:
    process = start(TOLD)
    session, end = watch(Counts((0, 0, 0), (0, 0, 0)))
    process.terminate()
    assert "the reason" in see_end(session, end).sentence
    Path(session.path("python.exit_call.ring")).unlink()  # as sealing does
    assert end.write()  # once more, as for one that was still ending then
    found = find_ending(session)
    assert found is not None and "the reason" in found.sentence


def test_one_whose_recording_was_stopped_has_no_end(start) -> None:
    process = start("import sonde\nsonde.start(collector='off')\nsonde.stop()\n" + WAIT)
    first, second = list_sessions(os.environ["SONDE_DIR"])
    end = ProcessEnd(first, Counts((0, 0, 0), (0, 0, 0)))
    assert end.write() and process.poll() is None
    assert first.read_exit() is None and second.is_alive()
