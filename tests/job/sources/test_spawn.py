"""Processes that the program starts: each has a row with its line, and the program notices nothing."""

from __future__ import annotations

import json
import os
import signal

from conftest import wait_for
from sonde.session import list_sessions
from sonde.store.recording import open_recording

PROGRAM = """
import _posixsubprocess, multiprocessing, os, subprocess, sys, threading, time, traceback
import sonde
before = os.posix_spawn, os.posix_spawnp, _posixsubprocess.fork_exec, getattr(subprocess, "_fork_exec", None)

def start_all():
    pids = []
    pids.append(subprocess.Popen(["true", "secret"]))
    pids.append(subprocess.Popen(["true"], preexec_fn=lambda: None))
    pids.append(subprocess.Popen(["/bin/true"], close_fds=False))
    for one in pids: one.wait()
    pids = [one.pid for one in pids]
    pids.append(os.posix_spawn("/bin/true", ["true"], {}))
    os.waitpid(pids[-1], 0)
    pids.append(os.posix_spawnp("true", ["true"], os.environ))
    os.waitpid(pids[-1], 0)
    pids.append(os.fork())
    if pids[-1] == 0: os._exit(0)
    os.waitpid(pids[-1], 0)
    worker = multiprocessing.get_context("fork").Process(target=int)
    worker.start()
    worker.join()
    return [*pids, worker.pid]

folder = sonde.start(collector=False, follow=False)
pids = start_all()
try:
    subprocess.run(["no such program"])
except FileNotFoundError:
    assert "sonde" not in traceback.format_exc()
try:
    os.posix_spawn("/no such program", ["x"], {})
except FileNotFoundError:
    assert traceback.format_exc().count("File ") == 1
assert repr(os.posix_spawn) == "<built-in function posix_spawn>"
if os.fork() == 0:  # nobody records the child: the parent's rows are the parent's
    subprocess.run(["true"])
    os._exit(0)
os.wait()
sonde.stop()
assert before == (os.posix_spawn, os.posix_spawnp, _posixsubprocess.fork_exec, getattr(subprocess, "_fork_exec", None))
start_all()
import json
print(json.dumps([folder, pids]))
"""


def test_each_process_has_the_line_that_started_it(run) -> None:
    folder, pids = json.loads(run(PROGRAM).stdout)
    rows = open_recording(folder).query("FROM python.spawn ORDER BY t_ns").to_pylist()
    assert [row["child"] for row in rows[:-1]] == pids[:5]  # forks have no row
    exec_, spawn = "exec", "posix_spawn"
    assert [row["how"] for row in rows] == [exec_, exec_, spawn, spawn, spawn, exec_]
    assert [row["program"] for row in rows] == [
        "true", "true", "/bin/true", "/bin/true", "true", "no such program",
    ]  # fmt: skip
    lines = PROGRAM.splitlines()
    named = [lines[row["lineno"] - 1].split("(")[0].split()[-1] for row in rows]
    assert named == [
        *["pids.append"] * 5, "subprocess.run",
    ]  # fmt: skip
    assert {row["func"] for row in rows} == {"start_all", "<module>"}


# A process that another started asks it over TCP; what starts it calls the program's file anew.
WORKERS = """
import multiprocessing, socket, sys, time
def ask(port):
    with socket.create_connection(("127.0.0.1", port)) as server:
        server.recv(1)
if __name__ == "__main__":
    import sonde
    folder = sonde.start(collector=False, stack_every="2ms")
    listener = socket.create_server(("127.0.0.1", 0))
    workers = multiprocessing.get_context("spawn")
    worker = workers.Process(target=ask, args=(listener.getsockname()[1],))
    worker.start()
    def serve():
        client, _address = listener.accept()
        time.sleep(0.5)
        client.close()
    serve()
    worker.join()
    print(folder, worker.pid)
    sonde.stop()
"""


def test_a_worker_of_multiprocessing_has_its_line_and_waits_for_another_process_are_of_the_network(
    run, root
) -> None:
    folder, pid = run(WORKERS, SONDE="1").stdout.split()
    rows = open_recording(folder).query("FROM python.spawn").to_pylist()
    (worker,) = (row for row in rows if row["child"] == int(pid))
    assert WORKERS.splitlines()[worker["lineno"] - 1].strip() == "worker.start()"
    waits = "SELECT func FROM python.thread_time WHERE kind = 'network'"
    asked = {row["func"] for row in open_recording(folder).query(waits).to_pylist()}
    assert asked & {"socket.accept", "serve"}
    child = next(one for one in list_sessions(str(root)) if one.pid == int(pid))
    found = {row["func"] for row in open_recording(child.folder).query(waits).to_pylist()}
    assert "ask" in found


def test_ps_names_the_line_that_started_a_child(start, sonde_cli) -> None:
    parent = start(
        "import os, subprocess, sys, time, sonde\nsonde.start(collector=False)\n"
        "program = 'import time; time.sleep(0.3); print(\"ready\", flush=True); time.sleep(1000)'\n"
        "child = subprocess.Popen([sys.executable, '-c', program])\n"
        "try:\n    time.sleep(1000)\nfinally:\n    child.kill(); child.wait()",
        SONDE="1",
    )

    def list_both() -> list[dict[str, object]]:
        rows = json.loads(sonde_cli("ps", "--format", "json").stdout)
        return rows if len(rows) > 1 else []

    rows = wait_for(list_both)  # a child is recorded only after a while
    shown = sonde_cli("ps").stdout
    os.kill(parent.pid, signal.SIGINT)  # it ends its child
    parent.communicate()
    mine = next(row for row in rows if row["pid"] == parent.pid)
    (child,) = (row for row in rows if row["pid"] != parent.pid)
    assert mine["started_by"] is None and child["started_by"].endswith("program0.py:4")
    assert "program0.py:4" in shown
