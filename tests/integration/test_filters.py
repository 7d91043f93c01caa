"""A filter of system calls that ends whoever makes a forbidden one does not end a recorded job."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

import sonde
from support import native_tools
from support.needs import need

# Allow everything but one system call, whose number is in `FORBIDDEN`; no new privileges first.
FILTER = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def forbid(number, all_threads=False):
    load, equal, answer = (0x20, 0, 0, 0), (0x15, 0, 1, number), 0x06
    rows = [load, equal, (answer, 0, 0, 0x80000000), (answer, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(code))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    call = 277 if os.uname().machine == "aarch64" else 317
    assert libc.syscall(call, 1, int(all_threads), program) == 0, os.strerror(ctypes.get_errno())
"""
FLOCK = 32 if platform.machine() == "aarch64" else 73
UNAME = 160 if platform.machine() == "aarch64" else 63
READV = 270 if platform.machine() == "aarch64" else 310


WORK = """
import sonde, time
folder = sonde.start(collector={collector}, stack_every="1ms")
end = time.monotonic() + 0.3
def work():
    while time.monotonic() < end: pass
work()
print(folder)
"""


_NO_COLLECTOR = "a fatal signal leaves no native stacks: they need the collector, and that is off"


def read_start_of_stacks(folder: str) -> str | None:
    """What the source of stacks said when it began."""
    (log, *_) = (
        sonde.open(folder)
        .query("SELECT detail FROM sonde.source_log WHERE source = 'stack' AND state = 'on'")
        .to_pylist()
    )
    return log["detail"]


@pytest.mark.parametrize("collector", [True, False])
def test_stacks_need_no_call_that_marks_the_job_for_slow_forks(run_anew, collector: bool) -> None:
    code = f"forbid({READV})\n" + WORK.format(collector=collector)
    folder = run_anew(FILTER + code).stdout.strip()
    assert read_start_of_stacks(folder) == (None if collector else _NO_COLLECTOR)
    frames = sonde.open(folder).query("SELECT func FROM python.frame WHERE func = 'work'")
    assert frames.num_rows > 0


@pytest.mark.parametrize("collector", [True, False])
def test_a_job_that_may_not_read_memory_is_recorded_slowly(
    run_anew, tmp_path: Path, collector: bool
) -> None:
    code = f"forbid({READV})\n" + WORK.format(collector=collector)
    forbidden = native_tools.forbid_file(tmp_path, "/mem")
    folder = run_anew(FILTER + code, **forbidden).stdout.strip()
    assert "seccomp" in (read_start_of_stacks(folder) or "")


def test_a_job_without_a_file_of_its_memory_is_recorded_as_any(run_anew, tmp_path: Path) -> None:
    forbidden = native_tools.forbid_file(tmp_path, "/mem")
    folder = run_anew(WORK.format(collector=True), **forbidden).stdout.strip()
    assert read_start_of_stacks(folder) is None
    frames = sonde.open(folder).query("SELECT func FROM python.frame WHERE func = 'work'")
    assert frames.num_rows > 0


def test_what_a_thread_waits_for_is_known_under_a_filter_that_allows_to_ask(run_anew) -> None:
    code = """
forbid(1 << 20)
import socket, sonde, threading, time
folder = sonde.start(stack_every="1ms")
server = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(server.getsockname())
threading.Thread(target=one.recv, args=(1,), daemon=True).start()
local, _other = socket.socketpair()
threading.Thread(target=local.recv, args=(1,), daemon=True).start()
def list_waits():
    rows = sonde.open(folder).query("SELECT DISTINCT wait FROM python.stack_sample").to_pylist()
    return {row["wait"] for row in rows}
end = time.monotonic() + 20
while not {"network", "pipe"} <= list_waits() and time.monotonic() < end: time.sleep(0.2)
print(*sorted(list_waits() & {"network", "pipe"}))
"""
    assert run_anew(FILTER + code).stdout.split() == ["network", "pipe"]


def test_a_filter_that_allows_it_changes_nothing(run_anew) -> None:
    code = """
forbid(1 << 20)
import sonde
print(sonde.start())
"""
    folder = run_anew(FILTER + code).stdout.strip()
    (log, *_) = (
        sonde.open(folder)
        .query("SELECT detail FROM sonde.source_log WHERE source = 'stack' AND state = 'on'")
        .to_pylist()
    )
    assert log["detail"] is None


@pytest.mark.parametrize("number", [FLOCK, READV])
def test_a_program_that_filters_its_own_calls_lives(run_anew, number: int) -> None:
    code = f"""
import sonde, time
from sonde.launch import has_collector
folder = sonde.start(stack_every="500ms")  # no sample is being taken when the filter comes
end = time.monotonic() + 60
while not has_collector(os.environ["SONDE_DIR"]):
    assert time.monotonic() < end
forbid({number}, all_threads=True)
while b"seccomp" not in open(folder + "/text.intern", "rb").read():
    assert time.monotonic() < end
    sum(range(1000))
sonde.stop()
print(folder)
"""
    folder = run_anew(FILTER + code).stdout.strip()
    (log,) = (
        sonde.open(folder)
        .query("SELECT * FROM sonde.source_log WHERE detail LIKE '%seccomp%'")
        .to_pylist()
    )
    assert (log["source"], log["state"]) == ("recorder", "failed")


# fsync, ftruncate, fallocate, mkdir, rename, unlink, flock, fcntl, uname, prctl, ioctl, getdents64,
# openat, newfstatat, munmap, rt_sigprocmask, madvise, exit, and last clone; those without "at" where
# there are such
CALLS = {
    "aarch64": (82, 46, 47, 34, 38, 35, 32, 25, 160, 167, 29, 61, 56, 79, 215, 135, 233, 93, 220),
    "x86_64": (74, 77, 285, 83, 82, 87, 73, 72, 63, 157, 16, 217, 257, 262, 11, 14, 28, 60, 56),
}
OPENAT = 56 if platform.machine() == "aarch64" else 257


def test_whatever_call_a_later_filter_forbids_what_comes_next_does_not_end_the_program(
    run_anew,
) -> None:
    code = f"""
import sonde, time
class Row:
    n: sonde.i64
def is_asleep(tid):
    with open(f"/proc/self/task/{{tid}}/stat") as file: return file.read().rpartition(")")[2].split()[0] == "S"
def await_threads():
    end, looks = time.monotonic() + 60, 0
    while looks < 3:  # in a row, of all threads but this one
        assert time.monotonic() < end
        others = [tid for tid in os.listdir("/proc/self/task") if int(tid) != os.getpid()]
        looks = looks + 1 if others and all(map(is_asleep, others)) else 0
        time.sleep(0.003)
def scenario():
    sonde.start()
    await_threads()  # one that begins holds signals back
    yield lambda: sonde.table(Row)(1)
    yield lambda: (sonde.span("x").__enter__(), sonde.mark("x"), sonde.step(), sonde.session())
    yield lambda: (sonde.snapshot(), sonde.profile(len)([]))
    yield lambda: time.sleep(0.1)
    yield lambda: os.fork() or os._exit(sonde.table(Row)(1) or 0)
def attempt(number, chosen):
    steps = list(scenario())
    forbid(number, all_threads=chosen % 2)
    steps[chosen]()
    sonde.stop()
    os._exit(0)
def fork(number):
    forbid(number)
    os.fork()
    os._exit(0)
def ends(call, *args):
    return os.waitpid(os.fork() or call(*args), 0)[1] != 0
for number in {CALLS[platform.machine()]}:
    for chosen in range(4 if ends(fork, number) else 5):  # from 3.12 on a fork itself opens a file
        # The instant between our look for a filter and the call that it forbids is left. It is hit once in
        # a while, on a busy machine sooner, and not five times in a row.
        if all(ends(attempt, number, chosen) for _ in range(5)): print(number, chosen)
"""
    assert run_anew(FILTER + code).stdout == ""


def test_the_filter_is_looked_for_before_a_file_about_a_thread_is_opened(run_anew) -> None:
    """A file is opened when a thread begins to wait. Looking for a filter only when a turn began, and not in each, ended
    half of these; the instant between the look and the call is left, and lasts longer on a busy machine."""
    code = f"""
import sonde, time
def attempt(turn):
    sonde.start(stack_every="1ms")
    time.sleep(0.02 + turn * 0.00017)
    forbid({OPENAT}, all_threads=True)
    end = time.monotonic() + 0.03
    while time.monotonic() < end: time.sleep(0.002)
    os._exit(0)
print(sum(os.waitpid(os.fork() or attempt(turn), 0)[1] != 0 for turn in range(40)))
"""
    assert int(run_anew(FILTER + code).stdout) <= 8


# getpid, gettid, clock_gettime
ASKING = {"aarch64": (172, 178, 113), "x86_64": (39, 186, 228)}[platform.machine()]


@pytest.mark.parametrize("number", ASKING)
def test_what_is_allocated_and_freed_under_a_later_filter_does_not_end_the_program(
    run_anew, number: int
) -> None:
    code = f"""
import sonde
sonde.start(collector="off", source_heap="on", heap_every="4KiB")
kept = [bytearray(1000) for _ in range(3000)]
forbid({number})
del kept
kept = [bytearray(1000) for _ in range(3000)]
del kept
os._exit(0)
"""
    run_anew(FILTER + code)


@pytest.mark.parametrize("number", ASKING)
def test_a_program_under_a_later_filter_exits_as_it_says(run_anew, number: int) -> None:
    code = f"""
import sonde
sonde.start(collector="off")
forbid({number})
sys.exit(5)
"""
    assert run_anew(FILTER + code, check=False).returncode == 5


CLOCK = ASKING[2]


def test_the_cpu_time_of_steps_is_not_asked_for_under_a_later_filter(run_anew) -> None:
    need("torch")
    code = f"""
import sonde, time, torch
sonde.start(collector="off")
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(5): step()
forbid({CLOCK})
time.sleep(0.1)  # it is looked for a hundred times a second
for _ in range(5): step()
os._exit(0)
"""
    run_anew(FILTER + code)


@pytest.mark.parametrize(("number", "name"), [(FLOCK, "flock"), (UNAME, "uname")])
def test_where_a_filter_forbids_what_recording_needs_nothing_is_recorded(
    run_anew, number: int, name: str
) -> None:
    done = run_anew(FILTER + f"forbid({number})\nimport sonde\nprint(sonde.start())")
    assert done.stdout.strip() == "None"
    assert done.stderr == (
        f"sonde: not recording: a seccomp filter would end the program at our first call of {name}()\n"
    )
