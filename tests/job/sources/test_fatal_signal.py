"""Signals that end the program: its stacks are recorded, and it ends as it would have without us."""

from __future__ import annotations

import os
import signal

import pytest

import sonde
from conftest import wait_for
from sonde.attach import libdw
from sonde.session import list_sessions

# faulthandler is enabled before or after the recording begins, or not at all.
PROGRAM = """
import ctypes, faulthandler, mmap, os, signal, sys, tempfile, threading, time
how, helper = sys.argv[1:3]
if helper == "before":
    faulthandler.enable()
import sonde
assert sonde.start()
if helper in ("after", "long after"):
    faulthandler.enable()
def find_handler():
    room = ctypes.create_string_buffer(256)
    ctypes.CDLL(None).sigaction(signal.SIGBUS, None, room)
    return room.raw[:8]
theirs, end = find_handler(), time.monotonic() + 20
while helper == "long after" and find_handler() == theirs and time.monotonic() < end:
    time.sleep(0.01)                     # SIGBUS is taken back, because our own files may need it
def wait():
    time.sleep(1000)
threading.Thread(target=wait, daemon=True).start()
def die():
    if how == "SIGSEGV":
        ctypes.string_at(8)
    elif how == "SIGABRT":
        os.abort()
    elif how == "SIGBUS":
        with tempfile.TemporaryFile() as file:
            file.truncate(1 << 16)
            pages = mmap.mmap(file.fileno(), 1 << 16)
            file.truncate(0)
            pages[5000]
    else:
        signal.raise_signal(getattr(signal, how))
die()
"""
# It measures a long text until it is told to measure what is not there.
NATIVE = """
import ctypes, faulthandler, os, sys, threading, time
import sonde
assert sonde.start(stack_native="on", stack_every="2ms")
text = ctypes.create_string_buffer(b"x" * 3_000_000)
def wait():
    time.sleep(1000)
threading.Thread(target=wait, daemon=True).start()
def measure(place):
    ctypes.string_at(place)
if sys.argv[2] == "faulthandler":
    faulthandler.enable()
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    measure(text)
measure(8)
"""
HANDLED = """
import os, signal, sonde
caught = []
def read_caught():
    with open("/proc/self/status") as file:
        return next(line for line in file if line.startswith("SigCgt"))
signal.signal(signal.SIGSEGV, lambda *_arguments: caught.append(1))
before = read_caught()
assert sonde.start()
during = read_caught()
signal.raise_signal(signal.SIGSEGV)
child = os.fork()
if child == 0:
    os.abort()
status = os.waitpid(child, 0)[1]
sonde.stop()
# The C library takes 32 and 33 for itself when the first thread begins.
own = [int(line.split()[1], 16) & 0x7fffffff for line in (before, during, read_caught())]
print(caught, os.WTERMSIG(status), own[0] != own[1], own[0] == own[2])
"""


@pytest.mark.parametrize(
    ("how", "helper"),
    [("SIGSEGV", "none"), ("SIGSEGV", "before"), ("SIGSEGV", "after"), ("SIGABRT", "after"),
     ("SIGBUS", "before"), ("SIGBUS", "long after"), ("SIGFPE", "none")],
)  # fmt: skip
def test_stacks_of_all_threads_are_there_and_the_program_ends_as_before(
    run, how: str, helper: str
) -> None:
    done = run(PROGRAM, how, helper, check=False)
    assert done.returncode == -getattr(signal, how)
    assert done.stderr.count("Fatal Python error") == (helper != "none")
    recording = sonde.open("all")
    (row,) = recording.query("SELECT * FROM python.fatal_signal").to_pylist()
    assert row["signal"] == how and row["thread"] == row["pid"]
    # faulthandler raises the signal again, so that its address is lost.
    assert how != "SIGSEGV" or helper == "after" or row["address"] == 8
    frames = recording.query(
        f"SELECT thread, func FROM python.backtrace WHERE t_ns >= {row['t_ns']} ORDER BY depth"
    ).to_pylist()
    assert {"die", "<module>"} <= {
        frame["func"] for frame in frames if frame["thread"] == row["thread"]
    }
    assert "wait" in {frame["func"] for frame in frames if frame["thread"] != row["thread"]}


def find_files(thread: str) -> set[str]:
    """Return the files of all frames in which that thread, or any other than it, was last."""
    rows = sonde.open("all").query(
        f"SELECT file FROM python.backtrace WHERE thread {thread} "
        "(SELECT thread FROM python.fatal_signal) AND t_ns >= (SELECT t_ns FROM python.fatal_signal)"
    )
    return {os.path.basename(row["file"]).partition(".")[0] for row in rows.to_pylist()}


@pytest.mark.parametrize("helper", ["none", "faulthandler"])
def test_with_native_frames_the_last_stacks_have_those_of_the_fault_and_of_waits(
    start, tmp_path, root, helper: str
) -> None:
    if helper != "none" and os.uname().machine != "x86_64":
        pytest.skip("nobody knows the way out of a handler there")
    try:
        libdw.load()
    except libdw.NoUnwinder:
        pytest.skip("libdw is not installed")
    process = start(NATIVE, str(tmp_path / "end"), helper)
    known = "SELECT 1 FROM python.frame WHERE file LIKE '%/_ctypes.%' LIMIT 1"
    wait_for(lambda: list(list_sessions(str(root))) and sonde.open("all").query(known).num_rows)
    (tmp_path / "end").touch()
    assert process.wait(60) == -signal.SIGSEGV
    assert {"_ctypes", "program0"} <= find_files("=")
    # On aarch64 more would have to be known of a thread than where it is on its stack.
    assert os.uname().machine != "x86_64" or "libc" in find_files("!=")
    # It waits for our look, which is no wait of the program's.
    rows = sonde.open("all").query(
        "SELECT wait FROM python.stack_sample WHERE thread = (SELECT thread FROM python.fatal_signal) "
        "AND t_ns >= (SELECT t_ns FROM python.fatal_signal)"
    )
    assert {row["wait"] for row in rows.to_pylist()} <= {None, ""}


def test_the_programs_own_handlers_and_children_are_left_alone(run) -> None:
    done = run(HANDLED, SONDE_FOLLOW="0")
    assert done.stdout == f"[1] {int(signal.SIGABRT)} True True\n"
    rows = sonde.open("all").query("SELECT signal FROM python.fatal_signal").to_pylist()
    assert [row["signal"] for row in rows] == []


def test_the_setting_leaves_all_signals_alone(run) -> None:
    done = run(PROGRAM, "SIGABRT", "none", check=False, SONDE_STACK_FATAL="0")
    assert done.returncode == -signal.SIGABRT
    assert not sonde.open("all").query("SELECT 1 FROM python.fatal_signal").num_rows
