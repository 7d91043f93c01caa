"""Native frames: in their places among Python's, from every Python that is here, and harmless."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from attach.test_outside import VERSIONS, find_python
from conftest import wait_for
from sonde import _core
from sonde.attach import libdw, native, preflight
from sonde.attach.native_names import NativeFrame
from sonde.session.stack_table import StackFrame, ThreadStack

PROGRAM = """
import sys, threading, time
def nap(n):
    if n:
        nap(n - 1)
    else:
        time.sleep(1000)
class Key:
    def __lt__(self, other):
        time.sleep(1000)
threading.Thread(target=nap, args=(2,), daemon=True).start()
print("ready", flush=True)
sorted([Key(), Key()])
"""
# A thread waits in epoll_wait, which the kernel does not restart by itself, and another one counts.
WAITER = """
import ctypes, os, select, threading, time
here, there = os.pipe()
poll = select.epoll()
poll.register(here)
libc = ctypes.CDLL(None, use_errno=True)
def wait():
    found = libc.epoll_wait(poll.fileno(), ctypes.create_string_buffer(64), 4, -1)
    print(f"epoll {found} {ctypes.get_errno()}", flush=True)
threading.Thread(target=wait, daemon=True).start()
print("ready", flush=True)
for line in __import__("sys").stdin:
    if line == "wake\\n":
        os.write(there, b"x")
    else:
        print("alive", flush=True)
"""
# The child of posix_spawn waits for somebody to open a pipe, and its parent cannot be stopped.
SPAWNER = """
import os, sys
print("ready", flush=True)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], 0, 0)])
"""
TORCH = """
import threading, time, torch
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2
    @staticmethod
    def backward(context, gradient):
        print("ready", flush=True)
        time.sleep(1000)
x = torch.ones(3, requires_grad=True)
Doubled.apply(x).sum().backward()
"""
CHAIN = ["torch::autograd::Node::operator()", "torch::autograd::Engine::evaluate_function",
         "torch::autograd::Engine::thread_main", "torch::autograd::Engine::execute",
         "THPEngine_run_backward"]  # fmt: skip


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started = []

    def begin(text: str, *words: str, python: str = sys.executable) -> subprocess.Popen[str]:
        (tmp_path / "program.py").write_text(text)
        process = subprocess.Popen(
            [python, "-I", tmp_path / "program.py", *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def _library() -> None:
    try:
        libdw.load()
    except libdw.NoUnwinder:
        pytest.skip("libdw is not installed")


def read_state(pid: int, tid: int | None = None) -> str:
    return Path(f"/proc/{pid}/task/{tid or pid}/stat").read_text().rpartition(")")[2].split()[0]


def list_kinds(one: ThreadStack) -> list[str]:
    """Runs of frames: the names of Python's, and one "C" for all of C between them."""
    found: list[str] = []
    for frame in one.frames:
        name = "C" if frame.is_native else frame.func.rpartition(".")[2]
        if [name] != found[-1:] or name != "C":
            found.append(name)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_native_frames_lie_between_those_of_every_python(version: str, start) -> None:
    python = find_python(version)
    pid = start(PROGRAM, python=python).pid
    starts = ["_bootstrap_inner", "_bootstrap", "C"]

    def look() -> bool:
        found = native.read_stacks(pid)
        main, other = found.threads
        # Which of a thread's first calls go through C differs from version to version.
        kinds = [name for name in list_kinds(other) if name != "C"]
        return (
            found.notes == []
            and list_kinds(main) == ["C", "__lt__", "C", "<module>", "C"]
            and list_kinds(other)[0] == "C" and kinds[:4] == ["nap", "nap", "nap", "run"]
            and list_kinds(other)[-1] == starts[-1]
            and any("sleep" in frame.func or "select" in frame.func for frame in main.frames[:4])
        )  # fmt: skip

    wait_for(look)
    assert {read_state(pid, int(tid)) for tid in os.listdir(f"/proc/{pid}/task")} == {"S"}


def test_the_command_says_it_in_short_and_all_of_it_as_json(start, sonde_cli) -> None:
    pid = start(PROGRAM).pid
    wait_for(lambda: "__lt__" in list_kinds(native.read_stacks(pid).threads[0]))
    text = sonde_cli("stacks", pid, "--native", "--locals").stdout
    # What time.sleep() calls; and before 3.11 code does not know its class.
    sleeps, key = ("clock_nanosleep", "Key.") if sys.version_info >= (3, 11) else ("select", "")
    assert sleeps in text and "Py_BytesMain" not in text and "_PyEval_Vector" not in text
    assert "no locals and tasks: ask for them without --native" in text
    (shown,) = json.loads(sonde_cli("stacks", pid, "--native", "--format", "json").stdout)
    frames = shown["threads"][0]["frames"]
    starts = ("Py_RunMain", "Py_BytesMain")  # some compilers put the one into the other
    assert any(frame["func"] in starts and frame["native"] for frame in frames)
    ours = [frame["func"] for frame in frames if not frame["native"]]
    assert ours == [f"{key}__lt__", "<module>"]


# ---- no harm -----------------------------------------------------------------------------------


def test_a_thread_goes_on_when_the_tool_is_killed_while_it_holds_it(start) -> None:
    job = start(WAITER)
    text = "import sys, time; from sonde import _core; pid = int(sys.argv[1]); "
    text += "_core.look_at(pid, pid, lambda _data: (print('held', flush=True), time.sleep(1000)))"
    with subprocess.Popen(
        [sys.executable, "-c", text, str(job.pid)], stdout=subprocess.PIPE, text=True
    ) as tool:
        assert tool.stdout is not None and tool.stdout.readline() == "held\n"
        assert read_state(job.pid) == "t"
        with pytest.raises(preflight.AlreadyTraced, match="is being traced by python"):
            native.read_stacks(job.pid)
        tool.send_signal(signal.SIGTERM)  # waits until the thread is free
        assert read_state(job.pid) == "t" and tool.poll() is None
        tool.kill()
    wait_for(lambda: read_state(job.pid) == "S")
    assert job.stdin is not None and job.stdout is not None
    job.stdin.write("hello\n")
    job.stdin.flush()
    assert job.stdout.readline() == "alive\n"


def test_a_wait_without_end_does_not_end_because_somebody_looked(start) -> None:
    job = start(WAITER)
    assert job.stdin is not None and job.stdout is not None
    wait_for(lambda: len(native.read_stacks(job.pid).threads) == 2)
    for _ in range(10):
        found = native.read_stacks(job.pid)
    assert any("epoll" in frame.func for frame in found.threads[1].frames)
    job.stdin.write("wake\n")
    job.stdin.flush()
    assert job.stdout.readline() == "epoll 1 0\n"


def test_a_process_that_is_stopped_is_read_and_stays_stopped(start) -> None:
    pid = start(PROGRAM).pid
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: read_state(pid) == "T")
    assert "C" in list_kinds(native.read_stacks(pid).threads[0])
    # A thread that is let go wakes for an instant, in the kernel alone, before it stops again.
    wait_for(lambda: read_state(pid) == "T")


def test_a_thread_that_cannot_be_stopped_is_read_where_it_entered_the_kernel(
    start, tmp_path: Path
) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    pid = start(SPAWNER, pipe).pid
    wait_for(lambda: read_state(pid) == "D")
    found = native.read_stacks(pid)
    assert "where nothing stops it" in found.notes[0]
    assert found.threads[0].frames[0].is_native
    assert [frame.func for frame in found.threads[0].frames if not frame.is_native] == ["<module>"]
    with open(pipe, "wb"):
        pass


def test_without_permission_or_library_there_is_one_line(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start(PROGRAM).pid

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(_core, "look_at", refuse)
    with pytest.raises(preflight.Forbidden, match=f"process {pid} may not be traced: "):
        native.read_stacks(pid)
    monkeypatch.setattr(libdw, "_list_copies", list)
    monkeypatch.setattr(libdw, "_NAME", "libnone.so.1")
    with pytest.raises(libdw.NoUnwinder, match=r"pip install 'sonde\[native\]'"):
        native.read_stacks(pid)


# ---- known chains ------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_chain_through_torch_is_the_one_that_others_see(start, sonde_cli) -> None:
    pid = start(TORCH).pid
    wait_for(lambda: read_state(pid) == "S")
    (shown,) = json.loads(sonde_cli("stacks", pid, "--native", "--format", "json").stdout)
    main = next(one for one in shown["threads"] if one["thread"] == pid)
    names = [
        frame["func"].partition("(std::")[0].partition("(_object")[0] for frame in main["frames"]
    ]
    places = [names.index(name) for name in CHAIN]
    assert places == sorted(places)
    # Python's function is inside of the chain, and the call of backward() is outside.
    named = (
        ("Doubled.backward", "Tensor.backward")
        if sys.version_info >= (3, 11)
        else ("backward",) * 2
    )
    assert names.index(named[0]) < places[0]
    assert named[1] in names[places[-1] + 1 :]
    text = sonde_cli("stacks", pid, "--native").stdout
    shown = text.partition(f"Thread {pid}")[2].partition("\nThread ")[
        0
    ]  # not autograd's own threads
    mine = [line.split(" (")[0].strip() for line in shown.splitlines()]
    theirs = _ask_witness(pid)
    # The interpreter's and the C library's own functions are told in more or less detail.
    assert [name for name in mine if "torch" in name or name in theirs] == [
        name for name in theirs if "torch" in name or name in mine
    ]


def _ask_witness(pid: int) -> list[str]:
    """The functions of the main thread, the innermost first, as py-spy names them."""
    tool = shutil.which("py-spy", path=os.path.dirname(sys.executable)) or shutil.which("py-spy")
    if tool is None:
        pytest.skip("py-spy, the witness, is not installed")
    done = subprocess.run(
        [tool, "dump", "--native", "--json", "--pid", str(pid)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    main = next(one for one in json.loads(done.stdout) if one["os_thread_id"] == pid)
    return [frame["name"] for frame in main["frames"]]


# ---- merging -----------------------------------------------------------------------------------


def test_frames_are_merged_from_the_innermost_on() -> None:
    python = [StackFrame(name, "p.py", 1, 1) for name in "abc"]
    stack = ["leaf", "_PyEval_EvalFrameDefault.cold", "_TAIL_CALL_CALL", "call",
             "_PyEval_EvalFrameDefault", "main"]  # fmt: skip
    whole = [NativeFrame(name, "/lib/x.so") for name in stack]
    frames, is_fit = native.merge_frames(whole, python, [2, 3, 3])
    assert [frame.func for frame in frames] == ["leaf", "a", "b", "call", "c", "main"] and is_fit
    frames, is_fit = native.merge_frames(whole[:2], python, [2, 3])
    assert [frame.func for frame in frames] == ["leaf", "a", "b", "c"] and not is_fit
