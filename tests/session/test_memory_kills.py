"""What the kernel killed for memory while nobody looked, told by its counters."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sonde import environ
from sonde.collector.lock import take_lock
from sonde.launch import collector_starts
from sonde.session import Session, kernel_kills, list_sessions, memory_kills
from sonde.session.ending import Ending, describe_ends, find_ending
from sonde.session.files import EXIT, MEMORY_KILLS
from sonde.session.records import Exit, MemoryKills

KEPT = {"kills": 4, "wholes": 1, "limits": 9, "ours": 1, "starts": 0}
START = """
import sonde
sonde.start(collector="off")
print("ready", flush=True)
import time
time.sleep(300)
"""


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cgroup within another, on a machine whose log may not be read."""
    monkeypatch.setattr(kernel_kills, "_LOG", "/nonexistent")
    monkeypatch.setattr(kernel_kills, "_read", None)
    folder = tmp_path / "group" / "inner"
    folder.mkdir(parents=True)
    count(folder)
    return folder


def count(folder: Path, kills: int = 4, wholes: int = 1, limits: int = 9) -> None:
    """Write what the kernel of cgroups of version 2 counts; the outer one has the limit."""
    for one, reached, whole in ((folder, 0, 0), (folder.parent, limits, wholes)):
        events = f"low 0\nhigh 0\nmax 30\noom {reached}\noom_kill {{}}\noom_group_kill {whole}\n"
        (one / "memory.events.local").write_text(events.format(kills if one == folder else 0))
        (one / "memory.events").write_text(events.format(kills + 100))


def kill(start, folder: Path, programs: int = 1, **kept: int) -> list[Session]:
    """The sessions of killed programs, as a collector that was killed before them left them."""
    for _ in range(programs):
        process = start(START)
        process.kill()
        process.wait()
    sessions = list(list_sessions(environ.find_root()))
    for one in sessions:
        record = MemoryKills(folder=str(folder), number=folder.stat().st_ino, **(KEPT | kept))
        record.write(one.path(MEMORY_KILLS))
    return sessions


def note_starts(starts: int) -> None:
    Path(collector_starts(environ.find_root())).write_bytes(b"+" * starts)


def end(session: Session) -> Ending:
    found = find_ending(session)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kills", "starts", "wholes", "word", "hint"),
    [
        (4, 0, 1, "killed", "nobody saw by what"),
        (5, 0, 1, "killed", "nobody saw by what"),  # the collector
        (6, 0, 1, "out of memory?", "most likely by the kernel: its cgroup was out of memory"),
        (6, 1, 1, "killed", "perhaps"),  # the collector, and perhaps its successor
        (7, 1, 1, "out of memory?", "most likely"),
        (5, 0, 2, "out of memory?", "most likely"),  # the cgroup as a whole
    ],
)
def test_who_was_killed_is_known_from_how_many_were(
    start, cgroup: Path, kills: int, starts: int, wholes: int, word: str, hint: str
) -> None:
    (session,) = kill(start, cgroup)
    note_starts(starts)
    count(cgroup, kills, wholes, limits=10)
    found = end(session)
    assert (found.word, found.signal) == (word, "SIGKILL" if "?" in word else None)
    assert hint in found.sentence
    told = describe_ends([session])
    assert len(told) == (found.sentence != "was killed (nobody saw by what)")


def test_a_kill_without_a_limit_that_was_reached_is_for_the_machines_memory(
    start, cgroup: Path
) -> None:
    (session,) = kill(start, cgroup)
    count(cgroup, 6)
    assert "most likely by the kernel: the machine was out of memory" in end(session).sentence


def test_of_more_processes_than_kills_nobody_knows_which_they_were(start, cgroup: Path) -> None:
    sessions = kill(start, cgroup, programs=3)
    for kills, word in ((7, "killed"), (8, "out of memory?")):
        count(cgroup, kills, limits=10)
        assert {end(one).word for one in sessions} == {word}
    Exit(status=9).write(sessions[0].path(EXIT))  # one was seen to be killed otherwise
    count(cgroup, 7, limits=10)
    assert [end(one).word for one in sessions] == ["SIGKILL", "out of memory?", "out of memory?"]


def test_a_collector_of_another_cgroup_was_not_killed_here(start, cgroup: Path) -> None:
    (session,) = kill(start, cgroup, ours=0)
    note_starts(3)
    count(cgroup, 5, limits=10)
    assert end(session).word == "out of memory?"


def test_what_is_compared_late_is_told_with_less_certainty(
    start, cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (session,) = kill(start, cgroup)
    count(cgroup, 6, limits=10)
    later_ns = time.time_ns() + 3600 * 10**9
    monkeypatch.setattr(memory_kills, "time", type("Later", (), {"time_ns": lambda: later_ns}))
    assert end(session).word == "killed" and "perhaps by the kernel" in end(session).sentence


def test_another_cgroup_of_the_same_name_tells_nothing(start, cgroup: Path) -> None:
    (session,) = kill(start, cgroup)
    cgroup.rename(cgroup.parent / "old")
    assert end(session).word == "killed"  # gone, with its container
    cgroup.mkdir()
    count(cgroup, 6, limits=10)
    assert end(session).sentence == "was killed (nobody saw by what)"


def test_counters_that_were_compared_once_are_not_compared_again(start, cgroup: Path) -> None:
    (session,) = kill(start, cgroup)
    memory_kills.note_judged(session)
    count(cgroup, 6, limits=10)
    assert end(session).word == "killed"


def test_a_collector_that_runs_is_about_to_tell(start, cgroup: Path) -> None:
    (session,) = kill(start, cgroup)
    count(cgroup, 6, limits=10)
    lock = take_lock(environ.find_root())
    assert lock is not None and end(session).word == "killed"
    os.close(lock)
    assert end(session).word == "out of memory?"


@pytest.mark.parametrize("file", ["memory.events", "memory.oom_control"])
def test_older_kernels_count_elsewhere(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("oom 3\noom_kill_disable 0\nunder_oom 0\noom_kill 7\n")
    (tmp_path / "memory.failcnt").write_text("11\n")
    found = memory_kills.read_counts(str(tmp_path), lambda path: Path(path).read_bytes())
    assert found == (7, 0, 3 if file == "memory.events" else 11)
    assert memory_kills.read_counts(str(tmp_path / "none"), lambda _: b"") is None


# ---- a cgroup of the kernel's own ---------------------------------------------------------------

EAT = """
import glob, os, sonde
with open(os.environ["GROUP"] + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
sonde.start(collector="on")
print("ready", flush=True)
root = os.environ["SONDE_DIR"]
while not glob.glob(root + "/*/memory_kills.json"):
    pass
for path in glob.glob(root + "/.collector*.lock"):
    os.unlink(path)  # no other collector is started, which could see the end
kept = []
while True:
    kept.append(bytearray(1 << 20))
"""


@pytest.fixture
def real_cgroup() -> Iterator[Path]:
    """A cgroup with a limit of 150 MB, of either version."""
    for top, file in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"),
    ):  # fmt: skip
        folder = Path(top, f"sonde-test-{os.getpid()}")
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / file).exists():
            (folder / file).write_text(str(150 << 20))
            yield folder
            remove_cgroup(folder)
            return
        folder.rmdir()
    pytest.skip("no memory cgroup can be made here")


def remove_cgroup(folder: Path) -> None:
    for pid in (folder / "cgroup.procs").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    deadline = time.monotonic() + 60
    while True:
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
        else:
            return


def test_a_job_that_is_killed_after_its_collector_is_told_from_kill_9(
    start, real_cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_kills, "_LOG", "/nonexistent")  # as for ordinary users
    monkeypatch.setattr(kernel_kills, "_read", None)
    process = start(EAT, GROUP=str(real_cgroup))
    assert process.wait(120) == -signal.SIGKILL
    (session,) = list_sessions(environ.find_root())
    counts = memory_kills.read_counts(str(real_cgroup), lambda path: Path(path).read_bytes())
    assert counts is not None and counts[0] == 2  # the collector, then the job
    assert (
        end(session).sentence
        == "was killed, most likely by the kernel: its cgroup was out of memory"
    )
