"""The last stacks of a session are the same before and after it is sealed."""

from __future__ import annotations

import subprocess
import sys

from sonde import environ
from sonde.collector.loop import Collector
from sonde.session import Session, stack_table
from sonde.session.last_stacks import NAME, read_last_stacks, read_raised
from sonde.session.lock_waits import add_locks, read_lock_waits
from sonde.session.target import find_sessions

PROGRAM = """
import threading, time
import sonde
lock = threading.Lock()
def want():
    with lock: pass
def fail(): raise KeyError("no such order")
sonde.start(collector=False)
lock.acquire()
waiting = threading.Thread(target=want, daemon=True)
waiting.start()
time.sleep(0.6)
fail()
"""


def list_values(one: stack_table.ThreadStack) -> tuple[object, ...]:
    frames = [(frame.func, frame.file, frame.line) for frame in one.frames]
    lock = one.lock and {name: getattr(one.lock, name) for name in one.lock.__slots__}
    return (one.thread, one.name, one.t_ns, one.since_ns, one.cpu_ns, one.gil, one.idle, one.wait,
            one.interpreter, one.has_run, lock, frames)  # fmt: skip


def show_stacks(session: Session) -> str:
    code = (
        "import sys; from sonde.cli import main; main(sys.argv[1:]);"
        "assert not {'duckdb', 'pyarrow'} & set(sys.modules)"
    )
    words = [sys.executable, "-c", code, "stacks", session.folder]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sealing_keeps_every_stack_with_its_wait_and_the_exception(run, root) -> None:
    run(PROGRAM, check=False)
    (session,) = find_sessions("program.py", environ.find_root())
    before = stack_table.read_newest(session)
    add_locks(before, read_lock_waits(session))
    raised = read_raised(session)
    shown = show_stacks(session)
    while session.read_sealed() is None:
        Collector(environ.find_root()).step(0.0)
    assert not session.find_rings()
    found = read_last_stacks(session)
    assert found is not None
    assert [list_values(one) for one in found[0]] == [list_values(one) for one in before]
    assert [frame.func for frame in found[1]] == ["fail", "<module>"] == [f.func for f in raised]
    assert show_stacks(session) == shown
    assert "KeyError" in shown and "/program.py:7)" in shown and "waits for a lock" in shown
    _answers_without_the_file(session, shown)


def _answers_without_the_file(session: Session, shown: str) -> None:
    """An earlier sonde wrote no such file; a damaged one is as good as none."""
    from sonde.store.recording import open_recording

    sql = "SELECT * FROM python.backtrace ORDER BY thread, depth"
    rows = open_recording(session.folder).query(sql).to_pylist()
    with open(session.path(NAME), "w") as file:
        file.write("{}")
    assert read_last_stacks(session) is None
    assert open_recording(session.folder).query(sql).to_pylist() == rows


FAILING = """
import os, time
if os.fork() == 0:
    time.sleep(0.5)
    raise LookupError("in the child")
os.wait()
time.sleep(0.3)
if os.fork() == 0:
    time.sleep(0.5)
    os._exit(0)
os.wait()
raise KeyError("in the parent")
"""


def test_of_a_job_that_ended_those_are_shown_that_failed(run, root, sonde_cli) -> None:
    run(FAILING, check=False, SONDE="1", SONDE_COLLECTOR="off")
    assert len(find_sessions("program.py", environ.find_root())) == 3
    shown = sonde_cli("stacks", "program.py").stdout
    assert "in the child" in shown and "exit code 1" in shown and shown.count("Process ") == 2
