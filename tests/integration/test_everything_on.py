"""With native frames, the heap and all else on: other allocators, gdb, faulthandler, threads and forks."""

from __future__ import annotations

import ctypes.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.session import list_sessions

START = """
import os, sys, sonde
if "bare" not in sys.argv:
    settings = dict(source_heap="on", heap_every="16KiB", stack_native="on", stack_every="2ms",
                    source_kernel="on", source_call="off")
    assert sonde.start(**settings)
"""
# What it prints must be the same with and without a recording.
WORK = """
import hashlib, json, subprocess, threading
def work(times):
    kept, sum = [], hashlib.sha256()
    for number in range(times):
        kept.append({"number": number, "text": str(number) * 20, "list": [number] * (number % 300)})
        if number % 3 == 0:
            kept[number // 2] = None
            sum.update(json.dumps(kept[-1]).encode() + bytes(number % 5000))
    return sum.hexdigest()
def repeat(found, times):
    found.append(work(times))
"""
CROWD = (
    START
    + WORK
    + """
import time
def count_threads():
    return len(os.listdir("/proc/self/task"))
others, found = count_threads(), [work(3000)]
threads = [threading.Thread(target=repeat, args=(found, 3000)) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
# A thread that was joined may still end, and from 3.12 on Python warns of a fork then.
deadline = time.monotonic() + 10
while count_threads() > others and time.monotonic() < deadline: time.sleep(0.001)
pid = os.fork()
if pid == 0:
    os._exit(work(500) == work(500) and 7)
print(set(found), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(subprocess.run([sys.executable, "-c", "print(sum(map(len, map(str, range(50000)))))"],
                     capture_output=True, text=True).stdout.strip())
sonde.stop()
print(work(1000))
"""
)
STORM = (
    START
    + WORK
    + """
ends, expected = [], work(50)
def fork_often():
    for _ in range(60):
        pid = os.fork()
        if pid == 0:
            os._exit(7 if work(50) == expected else 8)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
threads = [threading.Thread(target=fork_often) for _ in range(4)]
for thread in threads: thread.start()
others = [work(1000) for _ in range(5)]
for thread in threads: thread.join()
print(len(ends), set(ends), len(set(others)))
"""
)
THREADS = (
    START
    + WORK
    + """
threading.stack_size(256 * 1024)
go, threads, found = threading.Event(), [], []
def wait(number):
    kept = [str(number)] * 10
    go.wait()
    found.append(len(kept))
try:
    for number in range(int(sys.argv[1])):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
except RuntimeError:
    threads.pop()          # this machine allows no more at once
here = work(1000)
go.set()
for thread in threads: thread.join()
print(len(threads) == len(found), here == work(1000), len(threads))
"""
)
LIVES = (
    START
    + WORK
    + """
import signal, time
expected, turns = work(200), 0
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    assert work(200) == expected
    turns += 1
    if turns == 1:
        open(sys.argv[1] + ".turned", "w").close()
sonde.stop()
print("unharmed")
"""
)
DUMPS = (
    START
    + WORK
    + """
import faulthandler, signal, tempfile, time
# Dumps are written beside what we read: each goes to the end, and reading moves no offset.
file = tempfile.TemporaryFile("a+b")
faulthandler.enable(file)
faulthandler.dump_traceback_later(0.01, repeat=True, file=file)
faulthandler.register(signal.SIGUSR1, file=file)
found, sent, begin = set(), 0, time.monotonic()
def count_dumps(mark):
    return os.pread(file.fileno(), 1 << 30, 0).count(mark)
def is_enough():
    return sent >= 30 and count_dumps(b"Timeout (") >= 30 and time.monotonic() > begin + 1
while time.monotonic() < begin + 20 and not is_enough():
    found.add(work(300))
    os.kill(os.getpid(), signal.SIGUSR1)
    sent += 1
faulthandler.cancel_dump_traceback_later()
# Only a dump that was asked for by the signal has a current thread.
print(len(found), count_dumps(b"Timeout (") >= 30, count_dumps(b"Current thread") == sent)
"""
)
COUNTS = """
SELECT (SELECT SUM(samples)::BIGINT FROM python.heap_sampling) AS heap, (SELECT SUM(samples)::BIGINT FROM python.stack) AS stacks
"""


def read_counts(root: Path) -> dict[str, int]:
    """Return how many samples of the heap and of stacks the program's recording has."""
    first = min(list_sessions(str(root)), key=lambda session: session.start_wall_ns)
    return sonde.open(first.folder).query(COUNTS).to_pylist()[0]


def find_allocator(name: str) -> str:
    fetched = Path(sys.prefix, "share", "allocators").glob(f"lib{name}.so.*")
    path = ctypes.util.find_library(name) or next((str(one) for one in fetched), None)
    if path is None:
        pytest.skip(f"lib{name} is not installed, and tests/allocators/get.sh has not fetched it")
    return path


@pytest.mark.parametrize("allocator", ["jemalloc", "tcmalloc_minimal"])
def test_a_program_on_another_allocator_does_what_it_does_bare(run, root, allocator: str) -> None:
    preload = find_allocator(allocator)
    bare = run(CROWD, "bare", LD_PRELOAD=preload)
    done = run(CROWD, LD_PRELOAD=preload)
    assert done.stdout == bare.stdout and done.stderr == bare.stderr
    assert "} 7\n" in done.stdout
    counts = read_counts(root)
    assert counts["heap"] > 0 and counts["stacks"] > 0


def test_a_storm_of_forks_ends_as_it_should(run, root) -> None:
    assert run(STORM).stdout == "240 {7} 1\n"
    assert read_counts(root)["heap"] > 0


@pytest.mark.parametrize("count", [1000])
def test_so_many_threads_all_end(run, root, count: int) -> None:
    done, same, alive = run(THREADS, str(count)).stdout.split()
    assert (done, same) == ("True", "True") and int(alive) > count / 10
    assert read_counts(root)["stacks"] > 0


def test_gdb_comes_and_goes(start, root, tmp_path: Path) -> None:
    gdb = shutil.which("gdb")
    if gdb is None:
        pytest.skip("gdb is not installed")
    end = tmp_path / "end"
    process = start(LIVES, str(end))
    wait_for((tmp_path / "end.turned").exists)
    for _ in range(3):
        before = read_counts(root)["stacks"] or 0
        # Without symbols, which it would read for seconds.
        words = ["-batch", "-nx", "-iex", "set auto-solib-add off", "-p", str(process.pid)]
        words += ["-ex", "info threads", "-ex", "detach"]
        done = subprocess.run([gdb, *words], capture_output=True, text=True, timeout=120)
        if "ptrace" in done.stderr and "not permitted" in done.stderr:
            pytest.skip("gdb may not attach here")
        # For a Python with a C library of its own gdb has no library of threads, and says LWP.
        assert "Thread" in done.stdout or "LWP" in done.stdout, done.stderr
        assert "detached" in done.stdout, done.stderr
        wait_for(lambda before=before: (read_counts(root)["stacks"] or 0) > before)
    end.touch()
    out, errors = process.communicate(timeout=60)
    assert out == "unharmed\n" and process.returncode == 0, errors


def test_faulthandler_dumps_as_before(run, root) -> None:
    assert run(DUMPS).stdout == "1 True True\n"
    assert read_counts(root)["stacks"] > 0
