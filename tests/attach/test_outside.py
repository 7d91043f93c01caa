"""Stacks of processes that are not recorded, read from outside, of every Python that is here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType

import pytest

from conftest import wait_for
from sonde.attach import layouts, line_tables, outside, preflight
from support.places import TOP

PROGRAM = """
import threading, time
def nap(n):
    if n:
        nap(n - 1)
    else:
        time.sleep(1000)
class Größe:
    def run(self):
        yield from (time.sleep(1000) for _ in "x")
threading.Thread(target=nap, args=(2,)).start()
print("ready", flush=True)
if "spin" in __import__("sys").argv:
    def spin():
        while True: sum(range(100))
    spin()
list(Größe().run())
"""
# From the innermost: how often each function is on the stack, with its line in the program.
NAPS = [("nap", 7), ("nap", 5), ("nap", 5)]
VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.13t", "3.14", "3.14t", "3.15", "3.15t"]


def find_python(version: str) -> str:
    script = TOP / "tests" / "support" / "find_python.py"
    found = subprocess.run(
        [sys.executable, script, version], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip(f"no Python {version} is installed here")
    return found.stdout.strip()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., int]]:
    (tmp_path / "program.py").write_text(PROGRAM)
    started = []

    def start(python: str, *words: str) -> int:
        process = subprocess.Popen(
            [python, "-I", tmp_path / "program.py", *words], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


def list_frames(pid: int, tmp_path: Path) -> list[list[tuple[str, int]]]:
    """The functions of the program on each stack, and their lines; of the main thread first."""
    found = outside.read_stacks(pid)
    assert not found.unsure
    assert {one.thread for one in found.threads} <= set(map(int, os.listdir(f"/proc/{pid}/task")))
    file = str(tmp_path / "program.py")
    return [
        [(frame.func.rpartition(".")[2], frame.line) for frame in one.frames if frame.file == file]
        for one in found.threads
    ]


def wait_for_frames(pid: int, tmp_path: Path, wanted: list[list[tuple[str, int]]]) -> None:
    seen = list[list[tuple[str, int]]]()

    def look() -> bool:
        seen[:] = list_frames(pid, tmp_path)
        return seen == wanted

    try:
        wait_for(look)
    finally:
        assert seen == wanted  # so that a failure shows what was seen


@pytest.mark.parametrize("version", VERSIONS)
def test_every_python_is_read_from_outside(version: str, program, tmp_path: Path) -> None:
    pid = program(find_python(version))
    main = [("<genexpr>", 10), ("run", 10), ("<module>", 17)]
    wait_for_frames(pid, tmp_path, [main, NAPS])
    assert all(one.idle for one in outside.read_stacks(pid).threads)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_thread_that_runs_is_read_as_well(version: str, program, tmp_path: Path) -> None:
    pid = program(find_python(version), "spin")
    wait_for_frames(pid, tmp_path, [[("spin", 15), ("<module>", 16)], NAPS])


def test_a_process_that_is_stopped_answers_the_command(program, sonde_cli) -> None:
    pid = program(sys.executable)
    os.kill(pid, signal.SIGSTOP)
    (shown,) = json.loads(sonde_cli("stacks", pid, "--format", "json").stdout)
    assert shown["pid"] == pid and len(shown["threads"]) == 2
    assert "read from outside" in shown["notes"][-1]
    text = sonde_cli("stacks", pid, "--locals").stdout
    assert "    nap (" in text and "no locals and tasks: it is not recorded" in text


def test_a_process_in_a_container_is_read_by_the_numbers_that_we_see(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ["unshare", "--fork", "--pid", sys.executable, "-I", str(tmp_path / "program.py")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        if job.stdout.readline() != "ready\n":
            pytest.skip("no process ids of our own may be made here")
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        pid = int(children[0])
        try:
            # 3.10 does not say which thread is which there: only the main one is found.
            seen = [3, 3] if sys.version_info >= (3, 11) else [3]
            wait_for(lambda: [len(one) for one in list_frames(pid, tmp_path)] == seen)
        finally:
            os.kill(pid, signal.SIGKILL)


# In a namespace of its own, the kernel's next number of a process is the last but one: that of the
# program's second thread is one of the lowest.
LAST_NUMBER = """
import json, pathlib, subprocess, sys, time
kernel = pathlib.Path("/proc/sys/kernel")
try:
    (kernel / "ns_last_pid").write_text(str(int((kernel / "pid_max").read_text()) - 2))
except OSError:
    sys.exit(77)
sonde = [sys.executable, "-m", "sonde"]
words = [*sonde, "run"] if "recorded" in sys.argv else [sys.executable, "-I"]
with subprocess.Popen([*words, "program.py"], stdout=subprocess.PIPE) as process:
    process.stdout.readline()
    threads, deadline = [], time.monotonic() + 60
    while len(threads) < 2 and time.monotonic() < deadline:
        look = subprocess.run([*sonde, "stacks", str(process.pid), "--format", "json"], stdout=-1)
        threads = json.loads(look.stdout)[0]["threads"] if look.returncode == 0 else []
    process.kill()
print(json.dumps([process.pid, [one["thread"] for one in threads]]))
"""


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="3.10 does not say in a container which thread is which"
)
@pytest.mark.parametrize("how", ["from outside", "recorded"])
def test_the_main_thread_is_first_where_numbers_begin_anew(
    root: Path, tmp_path: Path, how: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "look.py").write_text(LAST_NUMBER)
    words = ["unshare", "--fork", "--pid", "--mount-proc", sys.executable, "look.py", *how.split()]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode == 77 or done.stderr.startswith("unshare: "):
        pytest.skip("no process ids of our own may be made here")
    pid, threads = json.loads(done.stdout)
    assert len(threads) == 2 and threads[0] == pid > threads[1]


NAMED = """
import ctypes, threading, time
def nap(): ctypes.CDLL(None).prctl(15, b"reader-1", 0, 0, 0); print("ready", flush=True); time.sleep(1000)
threading.Thread(target=nap, daemon=True).start()
time.sleep(1000)
"""


def test_threads_have_the_names_that_the_kernel_knows() -> None:
    with subprocess.Popen([sys.executable, "-c", NAMED], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            found = {one.name for one in outside.read_stacks(process.pid).threads}
        finally:
            process.kill()
    assert found == {"MainThread", "reader-1"}


def test_a_thread_that_has_ended_is_told_as_any_that_is_not_there(program) -> None:
    pid, ended = program(sys.executable), 2**22 - 3
    with outside.OutsideReader(pid) as reader, pytest.raises(ProcessLookupError):
        reader.describe(ended, outside.FrameWalk([], []))


def test_what_cannot_be_read_is_one_line(sonde_cli) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        done = sonde_cli("stacks", process.pid)
        process.kill()
    assert done.returncode == 1
    assert done.stderr == f"sonde: process {process.pid} does not run Python\n"
    assert sonde_cli("stacks", 2**22 - 3).returncode == 3  # there is neither session nor process


def test_memory_that_is_no_table_is_no_layout() -> None:
    assert layouts.find_layout((3, 13), 4096, lambda _address, size: bytes(size)) is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the other line table is tested above")
def test_lines_are_those_that_python_names() -> None:
    def list_codes(code: CodeType) -> Iterator[CodeType]:
        yield code
        for one in code.co_consts:
            if isinstance(one, CodeType):
                yield from list_codes(one)

    for module in (json.decoder, pytest):
        whole = compile(Path(str(module.__file__)).read_text(), "file", "exec")
        for code in list_codes(whole):
            about = line_tables.Code(code.co_name, "", code.co_firstlineno, code.co_linetable)
            for start, _end, line in code.co_lines():
                if line is not None:
                    assert line_tables.find_line(about, start // 2) == line


# ---- which Pythons can be attached to -----------------------------------------------------------


def test_a_core_for_another_python_lets_us_attach_to_it(
    program, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "3.12" if sys.version_info[:2] != (3, 12) else "3.11"
    python = find_python(other)
    pid, ours = program(python), sys.version_info[:2]
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr(preflight, "PACKAGE", str(package))
    (package / f"_core.cpython-{ours[0]}{ours[1]}-some-linux-gnu.so").touch()
    with pytest.raises(preflight.OtherVersion) as error:
        preflight.check(pid, str(root))
    assert f"is Python {other} without sonde" in str(error.value)
    assert f"a core for {ours[0]}.{ours[1]} only" in str(error.value)
    assert str(error.value).endswith(f"{python} -m pip install sonde")
    (package / f"_core.cpython-{other.replace('.', '')}-some-linux-gnu.so").touch()
    assert preflight.check(pid, str(root)).fits
