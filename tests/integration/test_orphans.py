"""A job that adopts orphans, as process 1 of a container or as a subreaper, never sees ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.session import list_sessions, snapshots

SUBREAPER = """
import ctypes, os, signal, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
import sonde
def collectors():
    return [n for n in os.listdir("/proc") if n.isdecimal() and b"collector.loop" in read(n)
            and os.environ["SONDE_DIR"].encode() in read(n)]
def read(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file: return file.read()
    except OSError: return b""
def children():
    tasks = os.listdir("/proc/self/task")
    return [pid for task in tasks for pid in open(f"/proc/self/task/{task}/children").read().split()]
def wait_for(condition):
    while not condition(): time.sleep(0.01)
"""

WAIT = """
pid = os.fork()
if pid == 0: time.sleep(0.05); os._exit(0)
while True:
    try: print("reaped", os.wait()[0] == pid, flush=True)
    except ChildProcessError: break
print("end", flush=True)
"""


def test_a_subreaper_that_waits_for_all_its_children_ends(run_anew) -> None:
    code = SUBREAPER + "sonde.start(snapshot_signal='USR1')\nwait_for(collectors)\n" + WAIT
    assert run_anew(code).stdout.split() == ["reaped", "True", "end"]


def test_process_1_that_waits_for_all_its_children_ends(root: Path, tmp_path: Path) -> None:
    alone = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
    ]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not make namespaces")
    script = tmp_path / "program.py"
    script.write_text(
        SUBREAPER.replace("ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)", "assert os.getpid() == 1")
        + "sonde.start()\nwait_for(collectors)\n"
        + WAIT
    )
    done = subprocess.run(
        [*alone, sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["reaped", "True", "end"], done.stderr


def test_signalled_snapshots_leave_no_zombie(start_anew, root: Path) -> None:
    process = start_anew(
        SUBREAPER
        + "sonde.start(collector=False, snapshot_signal='USR1')\n"
        + "print('ready', flush=True)\n"
        + "while True: time.sleep(0.01)\n"
    )
    (session,) = list_sessions(str(root))
    for number in range(1, 4):
        process.send_signal(signal.SIGUSR1)
        wait_for(lambda number=number: snapshots.count(session) >= number)
    wait_for(lambda: find_states(process.pid) == ["S"])  # the keeper, at rest


def find_states(parent: int) -> list[str]:
    """The states of a process's children."""
    fields = []
    for pid in os.listdir("/proc"):
        if pid.isdecimal():
            try:
                stat = Path(f"/proc/{pid}/stat").read_text()
            except OSError:
                continue
            fields.append(stat.rpartition(")")[2].split())
    return [state for state, ppid, *_ in fields if int(ppid) == parent]


LIVE = SUBREAPER + "sonde.start()\nwait_for(collectors)\nprint('ready', flush=True)\n"


def test_killed_it_leaves_no_keeper_and_its_recording_is_sealed(start_anew, root: Path) -> None:
    process = start_anew(LIVE + "while True: time.sleep(0.01)\n")
    (session,) = list_sessions(str(root))
    (keeper,) = (int(pid) for pid in list_children(process.pid))
    process.kill()
    process.wait()
    wait_for(lambda: not os.path.exists(f"/proc/{keeper}"))
    wait_for(session.read_sealed)


def list_children(parent: int) -> list[str]:
    found = []
    for task in os.listdir(f"/proc/{parent}/task"):
        found += Path(f"/proc/{parent}/task/{task}/children").read_text().split()
    return found


def test_the_keeper_lives_through_forks_and_holds_none_of_the_jobs_memory(run_anew) -> None:
    code = (
        LIVE
        + """
keeper = children()
for _ in range(5):
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
time.sleep(0.05)
(now,) = children()
with open(f"/proc/{now}/status") as file: status = file.read()
size = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmSize"))
print([now] == keeper, size < 4096, os.listdir(f"/proc/{now}/fd"))
"""
    )
    # Our own library is half of that, and the least Python more than twice as much.
    assert run_anew(code).stdout.splitlines()[-1] == "True True []"


def test_after_exec_the_new_program_waits_for_nobody(run_anew) -> None:
    after = SUBREAPER + "assert sonde.start()\nwait_for(collectors)\n" + WAIT
    code = (
        LIVE + "print(flush=True)\nos.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])\n"
    )
    assert run_anew(code, after).stdout.split() == ["ready", "reaped", "True", "end"]


def test_a_job_that_is_too_large_to_be_copied_says_so(run_anew) -> None:
    code = (
        SUBREAPER
        + """
import mmap
large = mmap.mmap(-1, 1100 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
folder = sonde.start()
print(folder)
log = folder + "/log"
wait_for(lambda: os.path.exists(log) and "more than 1 GiB" in open(log).read())
large.close()
from sonde.cli import main
def list_complaints():  # the log is written a moment before the row that `ps` reads
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()): main(["ps"])
    return said.getvalue().splitlines()
wait_for(list_complaints)
lines = list_complaints()
print(len(lines), f"sonde: process {os.getpid()} has no collector: the job is process 1" in lines[0])
"""
        + WAIT
    )
    folder, *rest = run_anew("import contextlib, io\n" + code).stdout.split()
    assert rest == ["1", "True", "reaped", "True", "end"]
    found = sonde.open(folder).query("SELECT detail FROM sonde.source WHERE source = 'collector'")
    (row,) = found.to_pylist()
    assert "more than 1 GiB" in row["detail"]


def test_a_collector_that_a_recorded_job_adopts_leaves(run_anew) -> None:
    """Another process has started it, and has ended."""
    code = """
pid = os.fork()
if pid == 0:
    import sonde
    sonde.start()
    wait_for(collectors)
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(pid, 0)
import sonde
sonde.start()
while True:
    try: os.wait()
    except ChildProcessError: break
print("end")
"""
    assert run_anew(SUBREAPER.replace("import sonde", "") + code).stdout.strip() == "end"
