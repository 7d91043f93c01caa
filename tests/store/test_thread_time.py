"""What the time of threads goes to: a program whose waits are known, each in a thread of its own."""

from __future__ import annotations

import pytest

import sonde
from conftest import wait_for
from sonde.store.wait_kinds import refine_wait

WAITS = """
import fcntl, multiprocessing, os, queue, select, socket, subprocess, tempfile, threading, time
held, full, items = threading.Lock(), os.pipe(), queue.Queue()
held.acquire()
shared = multiprocessing.Lock()
shared.acquire()
near, far = socket.socketpair()
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
peer = server.accept()
file = tempfile.NamedTemporaryFile()
other = open(file.name)
fcntl.flock(file, fcntl.LOCK_EX)
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # it ends with us
poll = select.epoll()
poll.register(full[0])
waits = {
    "lock": held.acquire,
    "shared_lock": shared.acquire,
    "shared_lock of a file": lambda: fcntl.flock(other, fcntl.LOCK_EX),
    "queue": items.get,
    "sleep": lambda: time.sleep(1000),
    "poll": poll.poll,
    "poll of select": lambda: select.select([full[0]], [], []),
    "network": lambda: client.recv(1),
    "network of accept": server.accept,
    "pipe": lambda: os.read(full[0], 1),
    "pipe of a socket": lambda: near.recv(1),
    "child": child.wait,
    "child with a limit": lambda: child.wait(1000),
}
def compute():
    while True:
        sum(range(1000))
for name, wait in waits.items():
    threading.Thread(target=wait, name=name, daemon=True).start()
for name in ("cpu", "cpu too"):
    threading.Thread(target=compute, name=name, daemon=True).start()
print("ready", flush=True)
time.sleep(1000)
"""
BY_THREAD = """
SELECT name, ARG_MAX(kind, wall_ns) FILTER (kind NOT LIKE 'cpu%') AS kind, SUM(wall_ns) AS wall_ns,
       LIST(DISTINCT kind) AS kinds
FROM python.thread_time WHERE pid = {pid} GROUP BY thread, name
"""


def test_every_wait_is_named_and_all_times_add_up(start, sonde_cli) -> None:
    job = start(WAITS, SONDE="1")

    def ask() -> dict[str, dict[str, object]]:
        rows = sonde.open(job.pid).query(BY_THREAD.format(pid=job.pid)).to_pylist()
        return {row["name"]: row for row in rows if row["name"]}

    def is_known() -> bool:
        found = ask()
        waits = {name: row["kind"] for name, row in found.items() if not name.startswith("cpu")}
        return (
            len(found) == 16
            and all(kind == name.partition(" ")[0] for name, kind in waits.items() if name != "MainThread")
            and waits["MainThread"] == "sleep"
            # Two threads that only compute: each waits for the other to give the GIL away.
            and {"cpu", "gil"} <= set(found["cpu"]["kinds"])
        )  # fmt: skip

    try:
        wait_for(is_known)
    except AssertionError:
        pytest.fail(str(ask()))
    # On busy cores a thread that wants the GIL may stand in the queue for a processor instead.
    wait_for(lambda: ": waits for the GIL" in sonde_cli("stacks", job.pid).stdout)
    text = sonde_cli("stacks", job.pid).stdout
    for words in (
        "a lock",
        "a child process to end",
        "the network",
        "data through a pipe",
    ):
        assert f": waits for {words}" in text, text
    job.kill()
    job.wait()
    _check_sums(job.pid)


def _check_sums(pid: int) -> None:
    (sums,) = (
        sonde.open(pid)
        .query(
            "SELECT (SELECT SUM(wall_ns) FROM python.thread_time)::BIGINT AS parts, "
            "SUM(wall_ns)::BIGINT AS whole, COUNT(*) FILTER (idle <> (wait IS NOT NULL)) AS odd, "
            "COUNT(*) FILTER (queue_ns < 0) AS negative FROM python.stack_sample"
        )
        .to_pylist()
    )
    assert sums["parts"] == sums["whole"] > 0 and sums["odd"] == sums["negative"] == 0


def test_the_slow_way_knows_waits_as_well(start) -> None:
    code = "import time\nprint('ready', flush=True)\ntime.sleep(1000)\n"
    job = start(code, SONDE="1", SONDE_STACK_SLOW="1")
    ask = "SELECT COUNT(*) AS n FROM python.stack_sample WHERE wait = 'sleep'"
    wait_for(lambda: sonde.open(job.pid).query(ask).to_pylist()[0]["n"])


def test_frames_of_the_library_tell_a_queue_from_a_lock() -> None:
    inside = [("Condition.wait", "/py/threading.py"), ("Queue.get", "/py/queue.py")]
    assert refine_wait("lock", inside) == "queue"
    assert refine_wait("gil", inside) == "gil"
    assert refine_wait("sleep", [("Popen._wait", "/py/subprocess.py")]) == "child"
    assert refine_wait("lock", [("get", "/job/app.py")]) == "lock"
    assert refine_wait(None, []) == "other"
