"""Signals that end the program: its stacks are recorded, and it ends as it would have without us."""

from __future__ import annotations

import signal

import pytest

import sonde

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


def test_the_programs_own_handlers_and_children_are_left_alone(run) -> None:
    done = run(HANDLED, SONDE_FOLLOW="0")
    assert done.stdout == f"[1] {int(signal.SIGABRT)} True True\n"
    rows = sonde.open("all").query("SELECT signal FROM python.fatal_signal").to_pylist()
    assert [row["signal"] for row in rows] == []


def test_the_setting_leaves_all_signals_alone(run) -> None:
    done = run(PROGRAM, "SIGABRT", "none", check=False, SONDE_STACK_FATAL="0")
    assert done.returncode == -signal.SIGABRT
    assert not sonde.open("all").query("SELECT 1 FROM python.fatal_signal").num_rows
