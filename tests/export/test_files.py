"""Exporters: what all of them keep to, and the command."""

from __future__ import annotations

import contextlib
import json
import os
import pstats
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde import Error, plugins
from sonde.export.files import write_with
from support.browser import drive
from support.handmade_stacks import (
    HOSTILE,
    FakeRecording,
    export,
    load,
    record_training,
    write,
)
from support.pprof_messages import decode_pprof

NAMES = plugins.list_names("export.formats")


@pytest.mark.parametrize("name", NAMES)
def test_an_exporter_says_its_suffix_its_kind_and_how_to_open_it(name: str) -> None:
    exporter = load(name)
    assert exporter.SUFFIX.startswith(".") and isinstance(exporter.TEXT, bool)
    assert exporter.OPEN.format(file="x")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("weight", ["wall", "cpu", "gil"])
def test_equal_recordings_are_equal_files_whatever_the_order_of_rows(name: str, weight) -> None:
    one, other = record_training(), record_training()
    other.samples.reverse()
    other.frames = dict(reversed(other.frames.items()))
    assert export(name, one.profile(weight=weight)) == export(name, other.profile(weight=weight))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_sampled_is_an_error_not_an_empty_file(name: str) -> None:
    with pytest.raises(Error, match="no stack was sampled"):
        export(name, FakeRecording().profile())


@pytest.mark.parametrize("name", ["pstats", "collapsed", "speedscope", "svg"])
def test_a_weight_that_nothing_has_is_an_error_not_an_empty_file(name: str) -> None:
    with pytest.raises(Error, match="no gil time"):
        export(name, FakeRecording().see("a", 10, gil=False).profile(weight="gil"))


@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_written(name: str) -> None:
    frames = [
        (f"f{chr(char)}", "d/é\U0001f980 ;&<>\"'.py", 2, 1)
        for char in (*range(1, 48), 0x2028, 0xFFFE)
    ]
    recording = FakeRecording().name(100, "t\n;\x1b[31m").see(frames, 10)
    assert export(name, recording.profile())


@pytest.mark.parametrize("name", NAMES)
def test_a_stack_deeper_than_pythons_own_can_be_written(name: str) -> None:
    deep = [(f"f{depth}", "deep.py", depth, depth) for depth in range(3 * sys.getrecursionlimit())]
    assert export(name, FakeRecording().see(deep, 10).profile())


def test_a_hostile_name_is_text_on_the_page_and_in_the_picture(tmp_path: Path) -> None:
    recording = FakeRecording().name(100, HOSTILE).see(f"{HOSTILE}|]]>{HOSTILE}|@DATA@ @BOXES@", 10)
    recording.sessions[0].meta.argv = ["python", f"{HOSTILE} @SCRIPT@"]
    for name in ("flamegraph", "svg"):
        path = write(name, recording.profile(), tmp_path)
        ready = "await until(() => document.body.dataset.ready);" if name == "flamegraph" else ""
        said = drive(path, ready + """await wait();
            return { images: document.images.length, scripts: document.querySelectorAll("script").length }""")  # fmt: skip
        assert said["errors"] == [] and said["images"] == 0
        assert said["scripts"] == (3 if name == "flamegraph" else 2)  # ours, and the test's


# ---- the command --------------------------------------------------------------------------------

_JOB = """
import threading, sonde

def spin(end):
    total = 0
    while not end.is_set():
        for number in range(1000):
            total += number * number

def wait_for_work(end):
    end.wait()

sonde.start(collector="off", stack_every="2ms")
end = threading.Event()
threading.Thread(target=wait_for_work, args=(end,), name="waiter", daemon=True).start()
print("ready")
spin(end)
"""


@pytest.fixture
def pid(start) -> int:
    """A program that is being sampled, and has been for a while."""
    process = start(_JOB)
    seen = """SELECT COUNT(*) > 1 AND MIN(ns) > 0 AND SUM(n) > 100 AS ok
        FROM (SELECT SUM(wall_ns) AS ns, SUM(samples) AS n FROM python.stack_sample GROUP BY thread)
        WHERE EXISTS (SELECT 1 FROM python.thread WHERE name = 'waiter')"""
    wait_for(lambda: sonde.open(process.pid).query(seen)["ok"][0].as_py())
    return process.pid


@pytest.mark.parametrize("name", [".", "missing/page.html"])
def test_a_place_where_no_file_can_be_is_an_error_of_one_line(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / name)
    with pytest.raises(Error, match=re.escape(path)):
        write_with(path, True, False, lambda file: file.write("x"))


def test_a_live_program_is_exported_under_its_sessions_name(
    pid, tmp_path, monkeypatch, sonde_cli
) -> None:
    monkeypatch.chdir(tmp_path)
    session = sonde.open(pid).sessions[0].id
    for name in NAMES:
        done = sonde_cli("export", pid, "--to", name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert (tmp_path / f"{session}{load(name).SUFFIX}").stat().st_size > 100
    assert list(tmp_path.glob(".*")) == []


@pytest.fixture
def sums(pid: int) -> dict[str, int]:
    """What SQL says of the program, once it was killed and nothing more can come."""
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: sonde.open(pid).sessions[0].find_state() == "killed")
    return (
        sonde.open(pid)
        .query(
            "SELECT SUM(wall_ns)::BIGINT AS wall, SUM(cpu_ns)::BIGINT AS cpu,"
            " SUM(wall_ns) FILTER (gil)::BIGINT AS gil, SUM(samples)::BIGINT AS n"
            " FROM python.stack_sample"
        )
        .to_pylist()[0]
    )


def test_what_is_exported_is_what_the_table_holds(pid, sums, tmp_path, sonde_cli) -> None:
    folded = sonde_cli("export", pid, "--to", "collapsed", "-o", "-").stdout.splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in folded) == sums["wall"]
    document = json.loads(
        sonde_cli("export", pid, "--to", "speedscope", "--by", "cpu", "-o", "-").stdout
    )
    assert sum(sum(part["weights"]) for part in document["profiles"]) == sums["cpu"]
    path = tmp_path / "out.pstats"
    sonde_cli("export", pid, "--to", "pstats", "--by", "gil", "-o", path)
    assert pstats.Stats(str(path)).total_tt == pytest.approx(sums["gil"] / 1e9)


def test_pprof_holds_every_sum_of_the_table(pid, sums, tmp_path, sonde_cli) -> None:
    path = tmp_path / "out.pb.gz"
    sonde_cli("export", pid, "--to", "pprof", "-o", path)
    values = [sample.value for sample in decode_pprof(path.read_bytes()).sample]
    assert [sum(column) for column in zip(*values, strict=True)] == [
        sums["n"], sums["wall"], sums["cpu"], sums["gil"],
    ]  # fmt: skip


def test_threads_time_and_lines_are_chosen_on_the_command_line(pid: int, sonde_cli) -> None:
    def ask(*words: str) -> list[str]:
        done = sonde_cli("export", pid, "--to", "collapsed", "-o", "-", *words)
        assert done.returncode == 0, done.stderr
        return [line.rpartition(" ")[0] for line in done.stdout.splitlines()]

    assert all(line.startswith("waiter (") for line in ask("--thread", "wait*"))
    assert any("wait_for_work" in line for line in ask("--thread", "waiter"))
    functions = ask("--thread", "MainThread", "--by", "cpu")
    assert len(ask("--thread", "MainThread", "--by", "cpu", "--lines")) > len(functions)
    assert ask("--since", "+0s", "--until", "0s")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--to", "collapsed", "--since", "soon"), 2, "'soon' is not a time"),
        (("--to", "collapsed", "--thread", "nobody"), 1, "threads here: MainThread, waiter"),
        (("--to", "papyrus"), 2, "invalid choice: 'papyrus'"),
        (("--to", "svg", "-o", "/nowhere/x.svg"), 1, "/nowhere/x.svg: No such file"),
    ],
)
def test_what_cannot_be_exported_is_one_line_and_leaves_no_file(
    words, code, said, pid, tmp_path, monkeypatch, sonde_cli
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    done = sonde_cli("export", pid, *words)
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_could_not_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    from sonde.cli import export as command

    class Broken:
        TEXT = True

        @staticmethod
        def write(_profile, file) -> None:
            file.write("half")
            raise Error("enough")

    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(Error, match="enough"):
        command.write_file(str(path), Broken, None)
    assert path.read_text() == "old" and list(tmp_path.glob(".*")) == []


def test_what_others_have_put_beside_it_is_not_written_through(tmp_path: Path) -> None:
    from sonde.export.files import write_with

    other, path = tmp_path / "other", tmp_path / "out.json"
    other.write_text("theirs")
    (tmp_path / f".out.json.{os.getpid()}.tmp").symlink_to(other)
    for packed in (False, True):
        with contextlib.suppress(Error):
            write_with(str(path), True, packed, lambda file: file.write("ours"))
        assert other.read_text() == "theirs"
    assert path.exists()  # the link is gone: the second one found its place free


def test_a_pipe_is_written_and_not_replaced(pid: int, tmp_path: Path, sonde_cli) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        done = sonde_cli("export", pid, "--to", "collapsed", "-o", pipe)
        assert done.returncode == 0 and "spin" in reader.communicate(timeout=240)[0]
    assert pipe.is_fifo()


def test_on_a_terminal_it_says_what_was_written_and_how_to_open_it(pid: int, tmp_path) -> None:
    ours, theirs = pty.openpty()
    path = tmp_path / "out.pstats"
    command = [sys.executable, "-m", "sonde", "export", str(pid), "--to", "pstats", "-o", str(path)]
    process = subprocess.Popen(command, stderr=theirs)
    os.close(theirs)
    assert process.wait(60) == 0
    said = os.read(ours, 65536).decode()
    os.close(ours)
    assert f"wrote {path}" in said and f"snakeviz {path}" in said


def test_bytes_are_not_for_a_terminal(pid: int) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sonde", "export", str(pid), "--to", "pprof", "-o", "-"]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 1 and "cannot be shown on a terminal" in done.stderr
