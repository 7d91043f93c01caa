"""Forks: a child is recorded from its first moment, and a short one costs nothing."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace

import pytest

import sonde
from conftest import wait_for
from sonde.job.fork import end_with_multiprocessing
from sonde.session import files, list_sessions, stack_table

HEAD = """
import os, sys, threading, time
import sonde
def list_threads(): return sorted(os.listdir("/proc/self/task"))
"""


def list_functions(session) -> set[str]:
    if not os.path.exists(session.path(files.NODES)):
        return set()  # it is just beginning
    nodes = stack_table.read_nodes(session)
    return {nodes.frame(place).func for place in range(len(nodes)) if nodes.samples[place]}


def find_session(pid: int):
    return next((s for s in list_sessions(os.environ["SONDE_DIR"]) if s.pid == pid), None)


def test_a_child_that_hangs_at_once_is_recorded(start) -> None:
    code = """
sonde.start(collector="off")
lock = threading.Lock(); lock.acquire()
def wait_for_ever(): lock.acquire()
pid = os.fork()
if pid == 0:
    wait_for_ever()
print(pid, flush=True)
os.waitpid(pid, 0)
"""
    process = start(HEAD + code, ready=False)
    pid = int(process.stdout.readline())
    try:
        wait_for(lambda: find_session(pid) is not None)
        wait_for(lambda: list_functions(find_session(pid)) == {"wait_for_ever"})
    finally:
        os.kill(pid, signal.SIGKILL)
    found = sonde.open(pid).query("SELECT DISTINCT thread FROM python.stack_sample").to_pylist()
    assert found == [{"thread": pid}]  # our own thread, which began the session, is not sampled


def test_the_first_moments_of_a_child_are_in_its_sums(run) -> None:
    code = """
sonde.start(collector="off")
pid = os.fork()
if pid == 0:
    begin = time.monotonic_ns()
    end = time.monotonic() + 60
    while sonde.session() is None and time.monotonic() < end: pass
    until = time.monotonic() + 0.1
    while time.monotonic() < until: pass
    print(os.getpid(), begin, flush=True)
    sonde.stop()
    os._exit(0)
os.waitpid(pid, 0)
"""
    pid, begin_ns = map(int, run(HEAD + code).stdout.split())
    sql = "SELECT min(t_ns - wall_ns) AS first, sum(wall_ns) AS sum, max(t_ns) AS last FROM python.stack_sample"
    [row] = sonde.open(pid).query(sql).to_pylist()
    assert row["first"] <= begin_ns
    assert row["sum"] == row["last"] - row["first"]


@pytest.mark.parametrize("others", [0, 1])
def test_the_native_thread_lives_on_through_a_fork(run, others: int) -> None:
    code = f"""
sonde.start(collector="off")
stop = threading.Event()
for _ in range({others}): threading.Thread(target=stop.wait).start()
before = list_threads()
for _ in range(3):
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
after = list_threads()
stop.set()
print(before == after, len(before) == len(after))
"""
    done = run(HEAD + code, PYTHONWARNINGS="ignore")
    # Python 3.12 warns of a fork with threads: ours ends for it, also beside others.
    assert done.stdout.split()[0] == str(sys.version_info < (3, 12))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python does not warn of forks")
def test_nobody_is_warned_of_forks_beside_hooks_of_others(run_anew) -> None:
    code = """
import os, time, warnings, sonde
def look():
    return sum(1 for _ in os.listdir("/proc/self/task"))
os.register_at_fork(before=look, after_in_parent=look)
import logging
assert sonde.start(collector="off")
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for _ in range(50):
        pid = os.fork()
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
        time.sleep(0.002)
print(len(seen), look())
sonde.stop()
"""
    warned, threads = map(int, run_anew(code).stdout.split())
    assert warned == 0
    assert threads > 1  # ours came back


def test_a_short_child_has_no_session_whatever_it_does(run) -> None:
    code = """
import gc, multiprocessing
sonde.start(collector="off")
def work():
    gc.collect()
    exec("class A: pass")
context = multiprocessing.get_context("fork")
lives = []
while sum(life < 0.1 for life in lives) < 3 and len(lives) < 100:
    begin = time.monotonic()
    child = context.Process(target=work)
    child.start(); child.join()
    lives.append(time.monotonic() - begin)
    assert child.exitcode == 0
print(sum(life >= 0.1 for life in lives))
"""
    # Where others have the processors, not every child is a short one.
    long = int(run(HEAD + code).stdout)
    assert len(list(list_sessions(os.environ["SONDE_DIR"]))) <= 1 + long


def test_a_short_child_copies_no_memory_for_tables(run) -> None:
    code = """
class Row:
    n: sonde.i64
def count_faults():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return os.wait4(pid, 0)[2].ru_minflt
sonde.start(collector="off")
few = min(count_faults() for _ in range(5))
emits = [sonde.table(Row, f"job.t{n}") for n in range(800)]
many = min(count_faults() for _ in range(5))
print(many - few)
"""
    assert (
        int(run(HEAD + code).stdout) < 25
    )  # each page that is written to in a child is such a fault


def test_a_child_has_no_copy_of_what_is_known_of_functions(run) -> None:
    code = """
def measure():
    anonymous = sum_kib = 0
    for line in open("/proc/self/smaps"):
        if line.startswith("Anonymous:"): anonymous = int(line.split()[1])
        if line.startswith("VmFlags:") and " wf" in line: sum_kib += anonymous  # wiped at a fork
    return sum_kib
sonde.start(collector="off", follow=False)
end = time.monotonic() + 60
while not measure() and time.monotonic() < end: time.sleep(0.01)
print(measure() > 0, flush=True)
pid = os.fork()
if pid == 0:
    print(measure(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""
    assert run(HEAD + code).stdout.split() == ["True", "0"]


def test_a_child_of_a_short_child_is_recorded(run) -> None:
    code = """
sonde.start(collector="off")
pid = os.fork()
if pid == 0:
    grandchild = os.fork()
    if grandchild:
        print(grandchild, flush=True)
        os._exit(0)
    end = time.monotonic() + 60
    while sonde.session() is None and time.monotonic() < end: time.sleep(0.01)
    os._exit(0)
os.waitpid(pid, 0)
print(os.getpid())
"""
    grandchild, pid = map(int, run(HEAD + code).stdout.split())
    wait_for(lambda: find_session(grandchild) is not None)
    assert find_session(grandchild).meta.parent == find_session(pid).id


def test_a_fork_while_multiprocessing_is_being_imported_waits_for_the_next_one(monkeypatch) -> None:
    begun = SimpleNamespace(register_after_fork=print)  # another thread has come so far
    monkeypatch.setitem(sys.modules, "multiprocessing.util", begun)
    assert end_with_multiprocessing(print) is False


def test_a_short_child_of_multiprocessing_ends_without_touching_the_recording(run) -> None:
    code = """
import multiprocessing, multiprocessing.util
from sonde.job.recorder import recorder
sonde.start(collector="off")
def tell(): print(recorder.lock.is_inherited(), flush=True)
def work(): multiprocessing.util.Finalize(None, tell, exitpriority=-200)  # after ours
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
"""
    assert run(HEAD + code).stdout.split() == ["True"]


def test_a_short_child_of_multiprocessing_runs_no_python_code_of_ours(run) -> None:
    code = """
import multiprocessing, multiprocessing.util
sonde.start(collector="off")
seen = set()
def watch(frame, event, arg):
    if event == "call" and os.sep + os.path.join("sonde", "job") in frame.f_code.co_filename:
        seen.add(frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)
def tell():
    sys.setprofile(None)
    print(sorted(seen), flush=True)
def work():
    multiprocessing.util.Finalize(None, tell, exitpriority=-200)  # after ours
    sys.setprofile(watch)
child = multiprocessing.get_context("fork").Process(target=work)
child.start(); child.join()
"""
    assert run(HEAD + code).stdout == "[]\n"


@pytest.mark.parametrize("when", ["stop", "start"])
def test_nothing_that_a_child_notes_while_its_recording_begins_is_lost(run, when: str) -> None:
    code = f"""
import sonde.job.sources.gc
sonde.start(collector="off")
class Row:
    n: sonde.i64
emit = sonde.table(Row, "shop.order")
source = sonde.job.sources.gc.Source
kept, begins, goes_on = source.{when}, threading.Event(), threading.Event()
def do_late(self):  # in the thread that begins the recording
    begins.set()
    assert goes_on.wait(120)
    time.sleep(0.2)  # for what would be lost meanwhile
    kept(self)
pid = os.fork()
if pid == 0:
    source.{when} = do_late
    assert begins.wait(120)
    goes_on.set()
    emit(7)
    with sonde.span("ship"): pass
    sonde.stop()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(pid)
"""
    session = sonde.open(int(run(HEAD + code).stdout))
    for table, column, value in (("event.span", "name", "ship"), ("shop.order", "n", 7)):
        rows = session.query(f"SELECT {column} AS value FROM {table}").to_pylist()
        assert rows == [{"value": value}]
