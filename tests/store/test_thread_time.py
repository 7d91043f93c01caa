"""What the time of threads goes to: a program whose waits are known, each in a thread of its own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

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

    def is_right(name: str, row: dict[str, object]) -> bool:
        kind = "sleep" if name == "MainThread" else name.partition(" ")[0]
        # It wakes twenty times a second. Where others have the processors, it then waits for the GIL
        # for longer than it has slept.
        wakes = name == "child with a limit" and row["kind"] == "gil"
        return row["kind"] == kind or (wakes and kind in row["kinds"])

    def is_known() -> bool:
        found = ask()
        return (
            len(found) == 16
            and all(is_right(name, row) for name, row in found.items() if not name.startswith("cpu"))
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


STOPPED = """
import ctypes, os, select, threading, time
held, poll = threading.Lock(), select.poll()
held.acquire()
poll.register(os.pipe()[0])
a_while = (ctypes.c_long * 2)(1000, 0)  # a timespec
waits = {
    "lock": lambda: held.acquire(timeout=1000),
    "poll": lambda: poll.poll(1_000_000),
    "sleep": lambda: ctypes.CDLL(None).nanosleep(a_while, None),
}
for name, wait in waits.items():
    threading.Thread(target=wait, name=name, daemon=True).start()
print("ready", flush=True)
time.sleep(1000)
"""
RESTARTED = {"x86_64": "219 ", "aarch64": "128 "}[os.uname().machine]
LAST_WAITS = """
SELECT name, ARG_MAX(wait, t_ns) AS wait, MAX(t_ns) AS t_ns
FROM python.stack_sample JOIN (SELECT DISTINCT thread, name FROM python.thread WHERE name IS NOT NULL) USING (thread)
WHERE name IN ('lock', 'poll', 'sleep') GROUP BY name
"""


def test_a_wait_that_was_stopped_and_goes_on_is_what_it_was(start) -> None:
    job = start(STOPPED, SONDE="1")

    def read_waits() -> dict[str, tuple[str, int]]:
        rows = sonde.open(job.pid).query(LAST_WAITS).to_pylist()
        return {row["name"]: (row["wait"], row["t_ns"]) for row in rows}

    def read_kinds() -> dict[str, str]:
        return {name: wait for name, (wait, _) in read_waits().items()}

    def count_restarted() -> int:
        files = Path(f"/proc/{job.pid}/task").glob("*/syscall")
        return sum(file.read_text().startswith(RESTARTED) for file in files)

    expected = {"lock": "lock", "poll": "poll", "sleep": "sleep"}
    wait_for(lambda: read_kinds() == expected)
    os.kill(job.pid, signal.SIGSTOP)
    wait_for(lambda: ") T " in Path(f"/proc/{job.pid}/stat").read_text())
    os.kill(job.pid, signal.SIGCONT)
    wait_for(lambda: count_restarted() >= 3)
    stopped_ns = time.monotonic_ns()
    wait_for(lambda: min(t_ns for _, t_ns in read_waits().values()) > stopped_ns + 2 * 10**9)
    assert read_kinds() == expected


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


NAPS = """
import ctypes, time, sonde
ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK: the kernel wakes it in time
folder = sonde.start(collector=False, follow=False, stack_every="2ms")
def nap():
    end = time.monotonic() + 2
    while time.monotonic() < end:
        time.sleep(2e-5)
before = time.thread_time()
nap()
used = time.thread_time() - before
sonde.stop()
print(folder, used)
"""
NAP_KINDS = """
SELECT kind, SUM(wall_ns)::BIGINT / 1e9 AS s FROM python.thread_time WHERE func = 'nap' GROUP BY kind
"""


def test_waits_that_are_over_before_they_are_seen_are_no_work(run) -> None:
    folder, used = run(NAPS).stdout.split()
    found = {row["kind"]: row["s"] for row in sonde.open(folder).query(NAP_KINDS).to_pylist()}
    # On a busy machine most of the rest is time in which it waited for a CPU.
    assert 0.7 < found["cpu"] / float(used) < 1.4, (found, used)
    assert set(found) <= {"cpu", "cpu_queue", "sleep"} and sum(found.values()) > 1.5


ON_ONE_CORE = """
import os, sys, time
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
print("ready", flush=True)
while True:
    if len(sys.argv) > 1:
        time.sleep(0.003)
    sum(range(3000))
"""
QUEUED = """
SELECT COUNT(*) FILTER (queue_ns > 0) AS queued, COUNT(*) FILTER (queue_ns > wall_ns) AS wrong
FROM python.stack_sample WHERE thread = pid
"""


def test_a_sample_has_no_more_queueing_than_time(start) -> None:
    start(ON_ONE_CORE)  # two that compute all the time, and one that mostly sleeps, on one core
    start(ON_ONE_CORE)
    job = start(ON_ONE_CORE, "nap", SONDE="1", SONDE_STACK_EVERY="2ms")
    ask = sonde.open(job.pid).query
    wait_for(lambda: ask(QUEUED).to_pylist()[0]["queued"] >= 100)
    assert ask(QUEUED).to_pylist()[0]["wrong"] == 0


PLENTY = """
import mmap, os, sys, time, sonde
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT)
os.truncate(file, 2**24)
page = mmap.mmap(-1, 4096)
pages = range(0, 2**24, 4096)
for at in pages:
    os.pwritev(file, [page], at)
folder = sonde.start(collector=False, follow=False, stack_every="2ms")
end = time.monotonic() + 2
while time.monotonic() < end:
    for at in pages:
        os.preadv(file, [page], at)
        os.pwritev(file, [page], at)
sonde.stop()
print(folder)
"""
READ_KINDS = """
SELECT DISTINCT kind FROM python.thread_time WHERE func = '<module>' AND lineno BETWEEN 12 AND 14
"""


def test_reads_and_writes_of_buffers_wait_for_the_disk(run, tmp_path: Path) -> None:
    """Python calls preadv2 and pwritev2 for them, which were `other`."""
    file = tmp_path / "file"
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError:
        pytest.skip("the file system of temporary files knows no O_DIRECT")
    folder = run(PLENTY, str(file)).stdout.strip()
    kinds = {row["kind"] for row in sonde.open(folder).query(READ_KINDS).to_pylist()}
    assert "disk" in kinds and kinds <= {"cpu", "cpu_queue", "disk"}
