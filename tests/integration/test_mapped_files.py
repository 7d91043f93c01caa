"""Whatever happens to the files of a live session, the job goes on as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import wait_for
from sonde.session import Session
from support.native_tools import make_vfork_fault

JOB = """
import os, sys, threading, time
import sonde
class Item:
    number: int
    text: str
emit = sonde.table(Item)
folder = sonde.start(collector=False, **{"stack.every": "2ms"})
def work(n):
    with sonde.span("load", shard=n % 7):
        emit(n, "text %d" % (n % 50))
        sonde.counter("queue", n)
        sonde.mark("here")
    return sum(range(200))
for n in range(500): work(n)
print("ready", flush=True)
total = 0
other = threading.Thread(target=lambda: [work(n) for n in range(3000)])
sys.stdin.readline()
other.start()
for n in range(3000): total += work(n)
other.join()
time.sleep(0.05)  # for the native thread, which samples
print("total", total, flush=True)
"""
SHARES = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.sonde_test_handle()
import sonde
sonde.start(collector="off")
library.sonde_test_map.restype = ctypes.c_void_p
page = ctypes.c_void_p(library.sonde_test_map())
print(library.sonde_test_fault_in_child(page), flush=True)
ctypes.string_at(page, 1)
"""
MAPPED = ("control", "text.intern", "stack.nodes", "event.totals", "job.item.ring",
          "python.stack_sample.ring", "event.span.ring", "python.thread.ring")  # fmt: skip


def folder_of(root: Path, process: subprocess.Popen[str]) -> Path:
    return next(root.glob(f"*-{process.pid}-*"))


def finish(process: subprocess.Popen[str]) -> None:
    out, _ = process.communicate("go\n", timeout=240)
    assert (process.returncode, out) == (0, f"total {3000 * sum(range(200))}\n")


@pytest.fixture
def job(start_anew, root: Path):
    """A job that waits for a line, works on and prints a sum; and its folder."""

    def make(*prefix: str) -> tuple[subprocess.Popen[str], Path]:
        script = root.parent / "job.py"
        script.write_text(JOB)
        process = subprocess.Popen(
            [sys.executable, *prefix, "-u", str(script)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        made.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()
        return process, folder_of(root, process)

    made: list[subprocess.Popen[str]] = []
    yield make
    for process in made:
        process.kill()
        process.communicate()


def cut(path: Path) -> None:
    os.truncate(path, 0)


def scribble_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(random.Random(path.name).randbytes(4096))


def scribble_all(path: Path) -> None:
    size = min(path.stat().st_size, 2**20)
    with path.open("r+b") as file:
        file.write(random.Random(path.name).randbytes(size))


# Without its control page a recording pauses, and then nothing uses the other files.
ALONE = [(scribble_header, (name,)) for name in MAPPED[1:]]
TOGETHER = [(harm, names) for harm in (cut, scribble_header, scribble_all)
            for names in (MAPPED[:1], MAPPED[1:])]  # fmt: skip


@pytest.mark.parametrize(("harm", "names"), ALONE + TOGETHER)
def test_a_file_that_is_cut_or_overwritten_does_no_harm(job, harm, names: tuple[str, ...]) -> None:
    process, folder = job()
    for name in names:
        harm(folder / name)
    finish(process)


def test_the_pages_that_are_lost_are_counted(job, root: Path) -> None:
    process, folder = job()
    session = Session(str(folder))
    assert session.read_control()["pages_lost"] == 0
    cut(folder / "job.item.ring")
    process.stdin.write("go\n")
    process.stdin.flush()
    wait_for(lambda: session.read_control()["pages_lost"])
    assert process.stdout.readline().startswith("total")


def test_a_copy_over_a_live_session_does_no_harm(job, tmp_path: Path) -> None:
    process, folder = job()
    subprocess.run(["cp", "-r", folder, tmp_path / "saved"], check=True)
    subprocess.run(f"cp -r {tmp_path}/saved/. {folder}/", shell=True, check=True)
    finish(process)


CRASH = """
import faulthandler, mmap, os, signal, sys, time
import sonde
if sys.argv[1] == "before": faulthandler.enable()
sonde.start(collector=False, **{"stack.every": "1ms"})
if sys.argv[1] == "after": faulthandler.enable(); time.sleep(0.2)
with open(sys.argv[2], "w+b") as file:
    file.truncate(8192)
    memory = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
    print("ready", flush=True)
    memory[5000]
"""


@pytest.mark.parametrize("handler", ["none", "before", "after"])
def test_a_bus_error_of_the_program_is_what_it_was(run, tmp_path: Path, handler: str) -> None:
    done = run(CRASH, handler, str(tmp_path / "file"), check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "ready\n")
    assert ("Fatal Python error: Bus error" in done.stderr) == (handler != "none")
    assert done.stderr.count("Fatal Python error") <= 1


AFTERWARDS = """
import ctypes, os, sonde
libc = ctypes.CDLL(None)
def handler():
    action = (ctypes.c_void_p * 32)()
    assert libc.sigaction(7, None, action) == 0
    return action[0]
print(handler())
sonde.start(collector=False)
with sonde.span("a"): pass
print(handler() != None)
sonde.stop()
print(handler())
"""


def test_after_the_end_the_signal_is_as_it_was(run) -> None:
    assert run(AFTERWARDS).stdout.split() == ["None", "True", "None"]


HANDLED = """
import os, signal, sonde
sonde.start(collector=False)
seen = []
signal.signal(signal.SIGBUS, lambda *_: seen.append(1))
os.kill(os.getpid(), signal.SIGBUS)
os.kill(os.getpid(), signal.SIGBUS)
print(len(seen), signal.getsignal(signal.SIGBUS) is not signal.SIG_DFL)
"""


def test_a_handler_of_the_program_gets_its_signals(run) -> None:
    assert run(HANDLED).stdout == "2 True\n"


def test_our_own_fault_prints_nothing_under_faulthandler(job) -> None:
    process, folder = job("-X", "faulthandler")
    for name in MAPPED[1:]:
        cut(folder / name)
    out, err = process.communicate("go\n", timeout=240)
    assert (process.returncode, out) == (0, f"total {3000 * sum(range(200))}\n")
    assert "Fatal" not in err


def test_a_disk_that_promised_room_it_does_not_have_is_called_full(run) -> None:
    """As on btrfs, which may lose a page that was written already."""
    done = run("""
import glob, os
import sonde
from sonde import _core
begin = _core.control_init
def lose(*args):
    begin(*args)
    for path in glob.glob(os.environ["SONDE_DIR"] + "/.*.new/control"): os.truncate(path, 0)
_core.control_init = lose
print(sonde.start(collector=False))
""")
    assert done.stdout.strip() == "None"
    assert done.stderr.startswith("sonde: not recording: the disk is full, or somebody has changed")


def test_a_fault_of_a_child_that_shares_the_memory_changes_nothing_in_the_parent(
    run, tmp_path
) -> None:
    """Whoever handled SIGBUS before us still does so when the parent itself has one."""
    library = make_vfork_fault(tmp_path)
    done = run(SHARES, str(library), check=False)
    assert done.stdout == f"own\n{int(signal.SIGBUS)}\nown\n"
    assert done.returncode == -signal.SIGBUS
