"""Live traces: whole at every instant, current, and never twice the same."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from conftest import wait_for
from sonde.analysis.region_layout import FOREVER_NS
from sonde.analysis.window import Window
from sonde.errors import Error
from sonde.export.live_trace import LiveTrace
from sonde.session import Session, list_sessions
from sonde.store.recording import Recording

WORK = """
import sonde, sys, time
sonde.start(collector="off")
with sonde.span("whole"):
    print("ready", flush=True)
    for line in sys.stdin:
        for number in range(int(line)):
            with sonde.span("step", number=number):
                sonde.counter("n", number)
        sonde.mark("told")
        print("done", flush=True)
"""


def read(path: Path) -> list[dict]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return json.loads(text)["traceEvents"]


def count(path: Path) -> Counter:
    return Counter(event["name"] for event in read(path) if event["ph"] in "XCib")


class Program:
    """A program that makes regions when it is told to."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"
        (self.session,) = list_sessions(str(root))

    def work(self, regions: int) -> None:
        self.process.stdin.write(f"{regions}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@pytest.fixture
def program(root: Path):
    made = Program(root)
    yield made
    made.process.kill()
    made.process.wait()
    made.process.stdin.close()
    made.process.stdout.close()


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_every_refresh_adds_what_is_new_and_nothing_twice(program, tmp_path: Path, name) -> None:
    path = tmp_path / name
    trace = LiveTrace(program.session, str(path))
    for round_ in range(1, 4):
        program.work(10)
        trace.refresh()
        seen = count(path)
        assert (seen["step"], seen["n"], seen["told"]) == (10 * round_, 10 * round_, round_)
        (whole,) = [event for event in read(path) if event["name"] == "whole"]
        assert whole["args"]["unfinished"] is True
    program.process.stdin.close()
    program.process.wait()
    trace.finish()
    (whole,) = [event for event in read(path) if event["name"] == "whole"]
    assert "unfinished" not in whole["args"]
    assert count(path)["step"] == 30
    assert [entry for entry in os.listdir(tmp_path) if entry.startswith(".t")] == []


def test_regions_nest_as_in_a_trace_of_the_whole(program, tmp_path: Path) -> None:
    trace = LiveTrace(program.session, str(tmp_path / "t.json"))
    for _ in range(3):
        program.work(5)
        trace.refresh()
    assert {event["ph"] for event in read(tmp_path / "t.json") if event["name"] == "step"} == {"X"}
    trace.close()


def test_attributes_said_before_a_refresh_are_there_after_it(program, tmp_path: Path) -> None:
    trace = LiveTrace(program.session, str(tmp_path / "t.json"))
    program.work(3)
    trace.refresh()
    steps = [event for event in read(tmp_path / "t.json") if event["name"] == "step"]
    assert sorted(event["args"]["number (attribute)"] for event in steps) == [0, 1, 2]
    trace.close()


def test_only_what_lies_in_the_windows_is_in_it(program, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    program.work(5)
    (marker,) = _query(program.session, "SELECT epoch_us(ts) AS us FROM event.marker")
    program.work(7)
    trace = LiveTrace(program.session, str(path))
    trace.refresh(lambda: [Window((marker["us"] + 1) * 1000, FOREVER_NS)])
    assert count(path)["n"] == 7
    trace.close()


def _query(session: Session, sql: str) -> list[dict]:
    return Recording([session]).query(sql).to_pylist()


def test_a_reader_finds_it_whole_at_every_instant(program, tmp_path: Path) -> None:
    path, ended, problems, looks = tmp_path / "t.json", threading.Event(), [], 0
    trace = LiveTrace(program.session, str(path))
    program.work(100)
    trace.refresh()

    def refresh() -> None:
        try:
            for _ in range(2):
                program.work(100)
                trace.refresh()
        except Exception as error:
            problems.append(error)
        ended.set()

    writer = threading.Thread(target=refresh)
    writer.start()
    while not ended.is_set():
        assert len(read(path)) > 100
        looks += 1
    writer.join()
    assert not problems and looks > 3
    trace.close()


def test_a_program_that_is_killed_leaves_its_open_regions(program, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    trace = LiveTrace(program.session, str(path))
    program.work(4)
    os.kill(program.process.pid, signal.SIGKILL)
    program.process.wait()
    trace.finish()
    assert count(path)["step"] == 4
    (whole,) = [event for event in read(path) if event["name"] == "whole"]
    assert whole["args"]["unfinished"] is True


def test_a_disk_without_room_leaves_the_old_file_and_nothing_is_lost_later(
    program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    trace = LiveTrace(program.session, str(path))
    program.work(5)
    trace.refresh()
    before = path.read_bytes()
    program.work(5)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # No file may grow beyond what this one has: to the writer it is like a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
        with pytest.raises(Error, match="the trace stays as it was"):
            trace.refresh()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    trace.refresh()
    assert count(path)["step"] == 10
    trace.close()


def test_export_follows_a_program_to_its_end(program, sonde_cli, tmp_path: Path) -> None:
    path, done = tmp_path / "t.json.gz", []
    follow = threading.Thread(
        target=lambda: done.append(
            sonde_cli("export", program.session.folder, "--to", "chrome", "--follow", "100ms",
                      "-o", path)
        )
    )  # fmt: skip
    follow.start()
    program.work(10)
    wait_for(lambda: path.exists() and count(path)["step"] == 10)
    program.work(10)
    program.process.stdin.close()
    program.process.wait()
    follow.join()
    assert done[0].returncode == 0, done[0].stderr
    assert count(path)["step"] == 20
