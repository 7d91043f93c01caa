"""Signals that end the program: its stacks are recorded, and it ends as it would have without us."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.attach import libdw
from sonde.attach.procfs import read_mappings
from sonde.collector.loop import Collector
from sonde.session.crash_file import FAULT, NO_ROOM, WAITS, CrashFile
from sonde.session.crash_file import FORBIDDEN as NOT_ALLOWED
from sonde.session.native_stacks import NAME
from support.native_tools import make_endless_calls, make_slow_reads

# A thread that waits for what never comes, and is known to.
WAITER = """
import os, threading, time
def wait():
    os.read(os.pipe()[0], 1)
def start_waiter():
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    call, end = {"x86_64": "0 ", "aarch64": "63 "}[os.uname().machine], time.monotonic() + 60
    while not open(f"/proc/self/task/{thread.native_id}/syscall").read().startswith(call):
        assert time.monotonic() < end
        time.sleep(0.001)
"""
# faulthandler is enabled before or after the recording begins, or not at all.
PROGRAM = (
    WAITER
    + """
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
start_waiter()
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
)
# The C library calls Python back, which then measures a text that is not there.
NATIVE = (
    WAITER
    + """
import ctypes, faulthandler, sys, threading, time
import sonde
how = sys.argv[1]
if how == "before":
    faulthandler.enable()
assert sonde.start()
if how == "after":
    faulthandler.enable()
start_waiter()
def compare(_one, _other):
    ctypes.string_at(8)
    return 0
def order():
    numbers, callback = (ctypes.c_int * 4)(4, 3, 2, 1), ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2)
    ctypes.CDLL(None).qsort(numbers, 4, 4, callback(compare))
def jump():
    ctypes.cast(16, ctypes.CFUNCTYPE(None))()
work = {"jump": jump}.get(how, order)
if how == "worker":
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
work()
"""
)
# Nobody else can be the collector as long as the program lives.
TAKEN = """
import os
from sonde.collector.lock import take_lock
os.makedirs(os.environ["SONDE_DIR"], 0o700, exist_ok=True)
lock = take_lock(os.environ["SONDE_DIR"])
assert lock is not None
"""
# A fault soon after a thread has begun, whose state names the thread that made it until it runs.
SOON = (
    WAITER
    + """
import ctypes, sonde
assert sonde.start()
start_waiter()
def dive(left):
    dive(left - 1) if left else ctypes.string_at(8)
dive(10)
"""
)
# A state as a thread has one that was made and has not begun: it is named after its maker, and runs nothing.
NOT_BEGUN = """
import ctypes
ctypes.pythonapi.PyInterpreterState_Get.restype = ctypes.c_void_p
ctypes.pythonapi.PyThreadState_New.restype = ctypes.c_void_p
def make_states():
    for _ in range(3):
        ctypes.pythonapi.PyThreadState_New(ctypes.c_void_p(ctypes.pythonapi.PyInterpreterState_Get()))
"""
# Threads that wait for ever, each below so many calls from C to Python; then a fault.
MANY = """
import ctypes, os, sys, threading
import sonde
count, depth = int(sys.argv[1]), int(sys.argv[2])
assert sonde.start()
reading = threading.Semaphore(0)
def wait(left):
    if left:
        return max([left - 1], key=wait)
    reading.release()
    os.read(os.pipe()[0], 1)
for _ in range(count):
    threading.Thread(target=wait, args=(depth,), daemon=True).start()
for _ in range(count):
    reading.acquire()
ctypes.string_at(8)
"""
FORBIDDEN = """
import ctypes
PR_SET_DUMPABLE = 4
assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
"""
# A child that shares our memory, as one by vfork() does: it begins in strlen(8).
SHARING = """
import ctypes, os, signal
import sonde
assert sonde.start()
libc = ctypes.CDLL(None)
CLONE_VM, CLONE_VFORK = 0x100, 0x4000
stack = ctypes.create_string_buffer(1 << 20)
top = (ctypes.addressof(stack) + len(stack)) & ~0xff
measure = ctypes.cast(libc.strlen, ctypes.c_void_p)
flags = CLONE_VM | CLONE_VFORK | signal.SIGCHLD
child = libc.clone(measure, ctypes.c_void_p(top), flags, ctypes.c_void_p(8))
assert child > 0
print(os.WTERMSIG(os.waitpid(child, 0)[1]), os.path.exists(sonde.session().folder + "/crash.stacks"), flush=True)
if os.environ.get("DIES"):
    os.abort()
"""
# Where handlers run: the program's own stack, ours, or the program's own for that.
STACK = """
import ctypes, os, sys, threading, time
class Stack(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("bytes", ctypes.c_size_t)]
def read_stack():
    found = Stack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found)) == 0
    return found.address, found.flags
def call_elsewhere(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
def wait_until(is_so):
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)
"""
OVERRUN = (
    WAITER
    + STACK
    + """
import faulthandler, sonde
library, how = ctypes.CDLL(sys.argv[1]), sys.argv[2]
if how == "faulthandler":
    faulthandler.enable()
(call_elsewhere if how == "elsewhere" else lambda start: start())(sonde.start)
wait_until(lambda: read_stack()[1] == 0)
start_waiter()
def dive():
    library.fall(0)
if how == "child":
    child = os.fork()
    if child == 0:
        wait_until(lambda: sonde.session() is not None)
        dive()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) + 256)
dive()
"""
)
RESTORED = (
    STACK
    + """
import sonde
SS_DISABLE = 2
own = ctypes.create_string_buffer(1 << 16)
def take_own():
    mine = Stack(ctypes.addressof(own), 0, len(own))
    assert ctypes.CDLL(None).sigaltstack(ctypes.byref(mine), None) == 0
assert read_stack()[1] == SS_DISABLE
for call in (lambda function: function(), call_elsewhere):
    call(sonde.start)
    wait_until(lambda: read_stack()[1] == 0)
    ours = read_stack()
    call(sonde.stop)
    wait_until(lambda: read_stack()[1] == SS_DISABLE)
take_own()
sonde.start()
sonde.stop()
print(read_stack() == (ctypes.addressof(own), 0) != ours)
"""
)
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


def read_threads() -> tuple[list[str], list[list[str]]]:
    """Return the frames of the thread that a fault has ended, and those of all others: functions
    of Python, and the files of native ones."""
    rows = sonde.open("all").query(
        "SELECT b.*, thread = (SELECT thread FROM python.fatal_signal) AS is_fatal "
        "FROM python.backtrace b ORDER BY thread, depth"
    )
    found: dict[tuple[bool, int], list[str]] = {}
    for row in rows.to_pylist():
        file = os.path.basename(row["file"]).partition(".")[0]
        place = file if row["frame_type"] == "Native" else row["func"]
        found.setdefault((row["is_fatal"], row["thread"]), []).append(place)
    (fatal,) = (places for (is_fatal, _), places in found.items() if is_fatal)
    return fatal, [places for (is_fatal, _), places in found.items() if not is_fatal]


def wait_for_native_stacks(root: Path) -> None:
    wait_for(lambda: list(root.glob(f"*/{NAME}")))


@pytest.fixture
def unwinder() -> None:
    try:
        libdw.load()
    except libdw.NoUnwinder:
        pytest.skip("libdw is not installed")


@pytest.mark.usefixtures("unwinder")
@pytest.mark.parametrize("how", ["alone", "before", "after", "worker"])
def test_native_stacks_of_all_threads_stand_between_those_of_python(
    run, root: Path, how: str
) -> None:
    done = run(NATIVE, how, check=False)
    assert done.returncode == -signal.SIGSEGV
    wait_for_native_stacks(root)
    fatal, others = read_threads()
    # The C library measured, for ctypes; it has called Python back, which ctypes had called it for.
    first, second = fatal.index("string_at"), fatal.index("compare")
    assert fatal[0] == "libc" and "_ctypes" in fatal[1:first]
    assert second == first + 1 < fatal.index("order")
    assert {"libc", "_ctypes"} <= set(fatal[second : fatal.index("order")])
    (sleeper,) = (places for places in others if "wait" in places)
    assert sleeper[0] == "libc" and "wait" in sleeper
    assert not list(root.glob("*/crash.stacks"))


@pytest.mark.usefixtures("unwinder")
def test_a_call_of_what_is_no_function_is_seen_at_its_caller(run, root: Path) -> None:
    done = run(NATIVE, "jump", check=False)
    assert done.returncode == -signal.SIGSEGV
    wait_for_native_stacks(root)
    fatal, _ = read_threads()
    assert "_ctypes" in fatal[: fatal.index("jump")]


@pytest.mark.usefixtures("unwinder")
@pytest.mark.parametrize("how", ["here", "elsewhere", "faulthandler", "child"])
def test_a_stack_that_has_run_over_leaves_the_last_stacks(
    run, root: Path, tmp_path: Path, how: str
) -> None:
    """Linux calls no handler for which the stack has no room."""
    done = run(OVERRUN, str(make_endless_calls(tmp_path)), how, check=False)
    assert done.returncode == (256 - signal.SIGSEGV if how == "child" else -signal.SIGSEGV)
    wait_for_native_stacks(root)
    fatal, others = read_threads()
    assert fatal[0] == "libendless_calls" and "dive" in fatal
    assert how == "child" or any("wait" in places for places in others)


def test_a_stack_for_handlers_is_there_only_while_it_records(run) -> None:
    assert run(RESTORED, SONDE_FOLLOW="0").stdout == "True\n"


def test_without_a_collector_a_line_says_that_native_stacks_lack(run, root: Path) -> None:
    done = run(PROGRAM, "SIGSEGV", "none", check=False, SONDE_COLLECTOR="0")
    assert done.returncode == -signal.SIGSEGV
    assert not list(root.glob("*/crash.stacks"))
    (row,) = sonde.open("all").query("FROM sonde.source WHERE source = 'stack'").to_pylist()
    assert "native stacks" in row["detail"]


@pytest.mark.usefixtures("unwinder")
def test_a_later_collector_unwinds_what_none_was_there_for(run, root: Path) -> None:
    done = run(TAKEN + NATIVE, "alone", check=False)
    assert done.returncode == -signal.SIGSEGV
    assert list(root.glob("*/crash.stacks")) and not list(root.glob(f"*/{NAME}"))
    fatal, _ = read_threads()
    assert fatal[:2] == ["string_at", "compare"]
    (row,) = sonde.open("all").query("FROM sonde.source WHERE source = 'stack.crash'").to_pylist()
    assert row["state"] == "unavailable" and "no collector" in row["detail"]
    collector = Collector(str(root))
    wait_for(lambda: collector.step(time.monotonic()) or list(root.glob("*/sealed.json")))
    assert read_threads()[0][0] == "libc"
    assert not list(root.glob("*/crash.stacks"))
    (row,) = sonde.open("all").query("FROM sonde.source WHERE source = 'stack.crash'").to_pylist()
    assert (row["state"], row["detail"]) == ("on", None)


@pytest.mark.usefixtures("unwinder")
def test_sonde_stacks_unwinds_what_no_collector_was_there_for(run, sonde_cli, root: Path) -> None:
    run(TAKEN + NATIVE, "alone", check=False)
    (left,) = root.glob("*/crash.stacks")
    shown = sonde_cli("stacks", left.parent.name, "--all-frames").stdout
    assert "libc" in shown and "string_at" in shown and "no native stacks" not in shown
    assert not left.exists() and (left.parent / NAME).exists()
    left.write_bytes(b"soncrash")
    shown = sonde_cli("stacks", left.parent.name).stdout
    assert "no native stacks: " in shown and "crash.stacks is damaged" in shown
    assert not left.exists()


@pytest.mark.usefixtures("unwinder")
def test_what_cannot_be_unwound_is_one_line(run, root: Path) -> None:
    run(TAKEN + NATIVE, "alone", check=False)
    (left,) = root.glob("*/crash.stacks")
    left.write_bytes(b"soncrash")
    collector = Collector(str(root))
    wait_for(lambda: collector.step(time.monotonic()) or list(root.glob("*/sealed.json")))
    (row,) = sonde.open("all").query("FROM sonde.source WHERE source = 'stack.crash'").to_pylist()
    assert row["state"] == "unavailable" and "crash.stacks is damaged" in row["detail"]
    assert not left.exists()


def read_left(root: Path) -> CrashFile:
    """Return what a program has left that no collector was there for."""
    (left,) = root.glob("*/crash.stacks")
    return CrashFile(str(left))


@pytest.mark.parametrize("turn", range(6))
def test_a_new_thread_is_not_taken_for_the_one_that_made_it(run, root: Path, turn: int) -> None:
    run(TAKEN + SOON, check=False)
    depths = {one.how: one.depth for one in read_left(root).threads}
    assert depths[FAULT] == 13  # dive eleven times, string_at and <module>
    assert 0 < depths[WAITS] < 13


def test_a_thread_that_has_not_begun_is_not_the_one_that_made_it(run, root: Path) -> None:
    run(TAKEN + NOT_BEGUN + SOON.replace("dive(10)", "make_states()\ndive(10)"), check=False)
    depths = {one.how: one.depth for one in read_left(root).threads}
    assert depths[FAULT] == 13


def test_the_last_stacks_are_there_however_slowly_memory_is_read(
    run, root: Path, tmp_path: Path
) -> None:
    slow = {"LD_PRELOAD": str(make_slow_reads(tmp_path)), "SLOW_READS": "40000"}
    run(TAKEN + NATIVE, "alone", check=False, **slow)
    depths = {one.how: one.depth for one in read_left(root).threads}
    assert depths[FAULT] == 4  # string_at, compare, order and <module>
    assert depths[WAITS] >= 3


def test_a_stack_ends_where_its_mapping_ends(run, root: Path) -> None:
    run(TAKEN + MANY, "300", "0", check=False)
    left = read_left(root)
    assert len(left.threads) > 300 and not left.gap
    ends = [one.end for one in read_mappings(left.maps)]
    whole = [one for one in left.threads if len(one.stack) < 2**16 - 4096]
    assert all(one.sp + len(one.stack) in ends for one in whole)
    assert sorted(len(one.stack) for one in left.threads)[150] < 2**14


def test_a_stack_that_has_run_over_is_kept(run, root: Path, tmp_path: Path) -> None:
    done = run(TAKEN + OVERRUN, str(make_endless_calls(tmp_path)), "here", check=False)
    assert done.returncode == -signal.SIGSEGV
    left = read_left(root)
    (one,) = (one for one in left.threads if one.tid == left.thread)
    assert len(one.stack) > 60_000


@pytest.mark.usefixtures("unwinder")
def test_threads_that_found_no_room_are_no_silent_gap(run, root: Path) -> None:
    run(TAKEN + MANY, "90", "250", check=False)
    left = read_left(root)
    assert left.gap == NO_ROOM and 50 < len(left.threads) < 80
    collector = Collector(str(root))
    wait_for(lambda: collector.step(time.monotonic()) or list(root.glob("*/sealed.json")))
    (row,) = sonde.open("all").query("FROM sonde.source WHERE source = 'stack.crash'").to_pylist()
    assert f"of {len(left.threads)} threads only" in row["detail"]


def test_of_a_program_that_forbids_core_dumps_no_memory_is_kept(run, root: Path) -> None:
    done = run(TAKEN + FORBIDDEN + NATIVE, "alone", check=False)
    assert done.returncode == -signal.SIGSEGV
    left = read_left(root)
    assert (left.gap, left.maps, left.threads) == (NOT_ALLOWED, b"", [])
    collector = Collector(str(root))
    wait_for(lambda: collector.step(time.monotonic()) or list(root.glob("*/sealed.json")))
    (row,) = sonde.open("all").query("FROM sonde.source WHERE source = 'stack.crash'").to_pylist()
    assert row["state"] == "unavailable" and "forbids core dumps" in row["detail"]
    assert not list(root.glob("*/crash.stacks"))
    assert "string_at" in read_threads()[0]  # Python's frames are as ever


@pytest.mark.parametrize("end", ["lives", "dies"])
def test_the_fault_of_a_child_that_shares_memory_is_not_the_parents(run, end: str) -> None:
    more = {"DIES": "1"} if end == "dies" else {}
    done = run(SHARING, check=False, **more)
    assert done.stdout == f"{int(signal.SIGSEGV)} False\n"
    assert done.returncode == (-signal.SIGABRT if more else 0)
    rows = sonde.open("all").query("SELECT signal FROM python.fatal_signal").to_pylist()
    assert [row["signal"] for row in rows] == (["SIGABRT"] if more else [])


def test_the_programs_own_handlers_and_children_are_left_alone(run) -> None:
    done = run(HANDLED, SONDE_FOLLOW="0")
    assert done.stdout == f"[1] {int(signal.SIGABRT)} True True\n"
    rows = sonde.open("all").query("SELECT signal FROM python.fatal_signal").to_pylist()
    assert [row["signal"] for row in rows] == []
    found = "FROM sonde.source_log WHERE detail LIKE '%handles 1 of the signals of faults%'"
    (row,) = sonde.open("all").query(found).to_pylist()
    assert (row["source"], row["state"]) == ("stack", "on")


LATER = """
import ctypes, os, signal, sonde, sys, time
end = time.monotonic() + 60
session = sonde.start(collector="off")
def holds(text):
    with open(session + "/text.intern", "rb") as file:
        return text in file.read()
def await_text(text):
    while not holds(text):
        assert time.monotonic() < end
        time.sleep(0.01)
def read_caught():
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("SigCgt")).split()[1], 16)
signal.signal(signal.SIGFPE, signal.SIG_DFL)
while not read_caught() >> signal.SIGFPE - 1 & 1:      # it is nobody's, and taken again
    assert time.monotonic() < end
    time.sleep(0.01)
signal.signal(signal.SIGSEGV, lambda *_arguments: None)
await_text(b"SIGSEGV by now")
signal.signal(signal.SIGBUS, lambda *_arguments: None)
await_text(b"SIGBUS by now")
time.sleep(1.5)
sonde.stop()
"""


def test_handlers_that_the_program_installs_later_are_told_once(run) -> None:
    run(LATER)
    found = "FROM sonde.source_log WHERE detail LIKE '%a handler of its own%' ORDER BY t_ns"
    first, second = sonde.open("all").query(found).to_pylist()
    assert (first["source"], first["state"]) == ("stack", "on")
    assert "SIGFPE" not in second["detail"] and second["detail"].count("SIGSEGV") == 1


def test_the_setting_leaves_all_signals_alone(run) -> None:
    done = run(PROGRAM, "SIGABRT", "none", check=False, SONDE_STACK_FATAL="0")
    assert done.returncode == -signal.SIGABRT
    assert not sonde.open("all").query("SELECT 1 FROM python.fatal_signal").num_rows
