"""The sensor of processes: whose they are, what they used, and that nothing is counted twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import wait_for
from sonde import _core
from sonde.collector.sensors import _slow_reads, process
from sonde.collector.sensors._descendants import Tree, _is_between
from sonde.collector.sensors._files import Reader

Rows = list[dict[str, object]]
MIB = 2**20


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()


def see(reader: Reader, sensor: process.Sensor, pid: int) -> Rows:
    reader.begin()
    names = process.Process.__annotations__
    return [dict(zip(names, values, strict=True)) for _, values in sensor.read_process(pid)]


class Watch:
    """Reads a process again and again, as the collector does."""

    def __init__(self, reader: Reader, pid: int) -> None:
        self.reader, self.pid, self.sensor = reader, pid, process.Sensor(reader)
        self.rows: Rows = []
        see(reader, self.sensor, pid)

    def until(self, is_so: Callable[[], object]) -> None:
        def read_again() -> object:
            self.rows += see(self.reader, self.sensor, self.pid)
            return is_so()

        wait_for(read_again)

    def once(self) -> Rows:
        found = see(self.reader, self.sensor, self.pid)
        self.rows += found
        return found

    def add(self, name: str, **where: object) -> float:
        """The sum of a column."""
        return sum(
            row[name] or 0
            for row in self.rows
            if all(row[key] == value for key, value in where.items())
        )

    def add_cpu_s(self, *names: str) -> float:
        """CPU time from shares and intervals, as a user would add it up in SQL."""
        return sum(row[n] / 100 * row["interval_ns"] / 1e9 for row in self.rows for n in names)


STEP = """
import os, resource, sys, time
{prepare}
print("ready", flush=True)
for line in sys.stdin:
    {work}
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime, used.ru_stime, flush=True)
"""


@pytest.fixture
def stepping(tmp_path: Path) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    """A child that does its work once for each line it is sent, and says what CPU it has used."""
    started: list[subprocess.Popen[str]] = []

    def start(work: str, prepare: str = "") -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", STEP.format(work=work, prepare=prepare)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(child)
        assert child.stdout is not None and child.stdout.readline().strip() == "ready"
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def step(child: subprocess.Popen[str], watch: Watch) -> tuple[float, float]:
    """One piece of work under watch; user and system seconds used so far."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    os.set_blocking(child.stdout.fileno(), False)
    said: list[str] = []

    def is_done() -> bool:
        time.sleep(0.08)
        said.append(child.stdout.readline())
        return said[-1].endswith("\n")  # half a line may come first

    watch.until(is_done)
    os.set_blocking(child.stdout.fileno(), True)
    watch.once()
    user, system = "".join(said).split()
    return float(user), float(system)


BURN = "end = time.monotonic() + 2.0\n    while time.monotonic() < end: pass"


def test_a_busy_thread_shows_what_the_kernel_charged_it(reader: Reader, stepping) -> None:
    child = stepping(BURN)
    watch = Watch(reader, child.pid)
    before = sum(step(child, watch))
    watch.rows.clear()
    after = sum(step(child, watch))
    # Against its own clock, not the wall's: on a busy machine it does not get a whole processor.
    assert watch.add_cpu_s("user_pct", "system_pct") == pytest.approx(after - before, rel=0.02)
    for row in watch.rows:  # the kernel's clock of another process lags by a tick of it
        tick_pct = 100 * 10e6 / row["interval_ns"]
        assert row["user_pct"] + row["system_pct"] <= 100 + tick_pct


def test_time_in_the_kernel_is_counted(reader: Reader, stepping) -> None:
    read = "end = os.times().system + 1.5\n    while os.times().system < end: os.read(zero, 2**20)"
    child = stepping(read, "zero = os.open('/dev/zero', os.O_RDONLY)")
    watch = Watch(reader, child.pid)
    user_before, before = step(child, watch)
    watch.rows.clear()
    user_after, after = step(child, watch)
    assert after - before > 1.4  # it was mostly there
    # getrusage shares a clock out between the two in its own way: what counts is the sum.
    both = watch.add_cpu_s("user_pct", "system_pct")
    assert both == pytest.approx(after - before + user_after - user_before, rel=0.02)
    assert watch.add_cpu_s("system_pct") == pytest.approx(after - before, rel=0.05, abs=0.05)


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A file of 256 MiB that is on a disk, and not in memory."""
    path = Path(__file__).parent / f".read-{os.getpid()}"
    with path.open("wb") as file:
        for _ in range(256):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    yield path
    path.unlink()


READ = """with open({path!r}, "rb", buffering=0) as file:
        while file.read(2**20): pass"""


def test_what_is_read_from_disk_adds_up(reader: Reader, stepping, on_disk: Path) -> None:
    child = stepping(READ.format(path=str(on_disk)))
    watch = Watch(reader, child.pid)
    step(child, watch)
    if watch.add("read_bytes") == 0:
        pytest.skip("this file system is not on a disk that the kernel counts")
    assert watch.add("read_bytes") == pytest.approx(256 * MIB, rel=0.01)
    assert watch.add("asked_read_bytes") == pytest.approx(256 * MIB, rel=0.01)


PARENT = """
import os, subprocess, sys
READ = "import os,sys; f = os.open('/dev/zero', 0); [os.read(f, 2**20) for _ in range(int(sys.argv[1]))]; print('ready', flush=True); sys.stdin.read()"
print("ready", flush=True)
for line in sys.stdin:
    child = subprocess.Popen([sys.executable, "-c", READ, line.strip()], stdin=-1, stdout=-1)
    child.stdout.readline()
    print(child.pid, flush=True)
    sys.stdin.readline()
    child.communicate()
    print("gone", flush=True)
"""


def tell(child: subprocess.Popen[str], line: str) -> str:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def test_the_io_of_an_ended_child_is_not_counted_again_in_its_parent(
    reader: Reader, start, tmp_path: Path
) -> None:
    code = tmp_path / "parent.py"
    code.write_text(PARENT)
    with subprocess.Popen(
        [sys.executable, "-u", str(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
        watch = Watch(reader, parent.pid)
        for _ in range(3):
            child = int(tell(parent, "64"))
            watch.once()
            watch.once()
            assert watch.add("asked_read_bytes", process=child) >= 64 * MIB
            assert tell(parent, "") == "gone"
            watch.once()
        parent.communicate()
    # The kernel adds a child's I/O to that of whoever waited for it.
    assert 3 * 64 * MIB <= watch.add("asked_read_bytes") < 3 * 66 * MIB


GRANDCHILD = """
import subprocess, sys
inner = "import sys; open('/dev/zero', 'rb').read(64 << 20); print('read', flush=True); sys.stdin.readline()"
outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
child = subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print("ready", flush=True)
sys.stdin.readline()
child.communicate("\\n")
print("gone", flush=True)
sys.stdin.readline()
"""


def test_the_io_of_a_child_and_of_its_child_that_end_together_is_counted_once(
    reader: Reader,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-c", GRANDCHILD],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
        watch = Watch(reader, parent.pid)
        watch.once()
        before = watch.add("asked_read_bytes")  # what nobody had seen yet
        assert tell(parent, "") == "gone"
        watch.once()
        watch.once()
        assert watch.add("asked_read_bytes") - before < 4 * MIB
        parent.communicate("\n")


def test_the_io_of_a_child_that_nobody_saw_is_its_parents(reader: Reader, tmp_path: Path) -> None:
    code = tmp_path / "parent.py"
    code.write_text(PARENT)
    with subprocess.Popen(
        [sys.executable, "-u", str(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
        watch = Watch(reader, parent.pid)
        tell(parent, "64")
        tell(parent, "")
        watch.once()
        parent.communicate()
    assert 64 * MIB <= watch.add("asked_read_bytes", process=parent.pid) < 66 * MIB


SLEEP = "import time; print('ready', flush=True); time.sleep(600)"


def test_all_descendants_are_there_with_their_depth(reader: Reader, start) -> None:
    nested = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    outer = start(
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {nested!r}], stdout=-1)\n"
        "child.stdout.readline()\nprint('ready', flush=True)\n"
        "try: time.sleep(600)\nfinally: child.kill()"
    )
    watch = Watch(reader, outer.pid)
    rows = watch.once()
    assert [row["depth"] for row in rows] == [0, 1, 2]
    assert rows[0]["process"] == outer.pid
    assert [row["parent"] for row in rows][1:] == [row["process"] for row in rows][:2]
    # The middle one ends: its child belongs to somebody else now, and stays known.
    os.kill(int(str(rows[1]["process"])), 9)
    orphan = rows[2]["process"]
    watch.until(lambda: [r for r in watch.once() if r["process"] == orphan and r["parent"] == 1])
    newest = [row for row in watch.once() if row["process"] == orphan]
    assert [row["depth"] for row in newest] == [2]
    os.kill(int(str(orphan)), 9)
    watch.until(lambda: not [r for r in watch.once() if r["process"] == orphan])


def test_a_process_that_was_started_meanwhile_counts_from_its_start(
    reader: Reader, stepping
) -> None:
    watch = Watch(reader, os.getpid())
    child = stepping("pass", "sum(range(10**6))")
    (row,) = [row for row in watch.once() if row["process"] == child.pid]
    age_s = row["interval_ns"] / 1e9
    assert 0 < age_s < 60 and row["user_pct"] + row["system_pct"] > 0
    assert row["asked_read_bytes"] > 0


def test_a_pid_that_is_used_again_is_a_new_process(tmp_path: Path) -> None:
    fake, clock = make_proc(tmp_path), iter(range(10**9, 10**12, 10**8))
    reader = Reader(str(fake), clock=lambda: next(clock))
    sensor = process.Sensor(reader)
    write_process(fake, 50, start=7, utime=1000, io=10**9, newest=60)
    see(reader, sensor, 50)
    write_process(fake, 50, start=7, utime=1010, io=10**9 + 5, newest=60)
    (row,) = see(reader, sensor, 50)
    assert row["asked_read_bytes"] == 5
    write_process(fake, 50, start=9, utime=2, io=3, newest=55)  # pids have gone round
    assert see(reader, sensor, 50) == []  # another one: what it did before is not known
    write_process(fake, 50, start=9, utime=3, io=4, newest=55)
    (row,) = see(reader, sensor, 50)
    assert row["asked_read_bytes"] == 1 and row["user_pct"] >= 0
    reader.close()


def test_another_users_process_has_nulls_for_what_may_not_be_read(tmp_path: Path) -> None:
    fake, clock = make_proc(tmp_path), iter(range(10**9, 10**12, 10**8))
    reader = Reader(str(fake), clock=lambda: next(clock))
    sensor = process.Sensor(reader)
    write_process(fake, 50, start=7, utime=1000, io=None)
    see(reader, sensor, 50)
    (row,) = see(reader, sensor, 50)
    assert row["read_bytes"] is None and row["fds"] is None and row["rss_bytes"] > 0
    reader.close()


def make_proc(tmp_path: Path) -> Path:
    fake = tmp_path / "proc"
    fake.mkdir()
    (fake / "loadavg").write_text("0.1 0.1 0.1 1/10 50\n")
    return fake


def write_process(
    fake: Path, pid: int, *, start: int, utime: int, io: int | None, newest: int = 50
) -> None:
    """A process of a /proc that a test makes up; its name is as nasty as the kernel allows."""
    folder = fake / str(pid)
    folder.mkdir(exist_ok=True)
    fields = ["S", "1", *["0"] * 9, str(utime), "5", *["0"] * 4, "1", "0", str(start), "4096", "10"]
    (folder / "stat").write_text(f"{pid} (a) b) c) {' '.join(fields)} 0 0\n")
    if io is not None:
        names = ("rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes")
        (folder / "io").write_text("".join(f"{name}: {io}\n" for name in names))
    (fake / "loadavg").write_text(f"0.1 0.1 0.1 1/10 {newest}\n")


def test_pids_go_round() -> None:
    assert _is_between(6, 5, 7) and not _is_between(5, 5, 7) and not _is_between(8, 5, 7)
    assert _is_between(32767, 32000, 300) and _is_between(299, 32000, 300)
    assert not _is_between(500, 32000, 300)


def test_of_many_processes_details_come_in_turn(reader: Reader, start, monkeypatch) -> None:
    monkeypatch.setattr(_slow_reads, "_RATE", 6.0)
    monkeypatch.setattr(_slow_reads, "_LEAST", 6.0)
    crowd = start(
        "import os, time\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0: time.sleep(600); os._exit(0)\n"
        "print('ready', flush=True)\n"
        "try: time.sleep(600)\nfinally: os.killpg(0, 9)"
    )
    watch = Watch(reader, crowd.pid)
    some = [row for row in watch.once() if row["fds"] is not None]
    assert 0 < len(some) < 21
    seen = set()

    def all_seen() -> bool:
        seen.update(row["process"] for row in watch.rows if row["fds"] is not None)
        time.sleep(0.05)
        return len(seen) == 21

    watch.until(all_seen)
    for pid in seen - {crowd.pid}:
        os.kill(int(str(pid)), 9)


def test_waiting_for_a_processor_is_seen(reader: Reader, stepping) -> None:
    crowd = 2 * len(os.sched_getaffinity(0))
    spin = f"""import threading
    pids = []
    for _ in range({crowd}):
        pid = os.fork()
        if pid == 0:
            end = time.monotonic() + 1.5
            while time.monotonic() < end: pass
            os._exit(0)
        pids.append(pid)
    for pid in pids: os.waitpid(pid, 0)"""
    child = stepping(spin)
    watch = Watch(reader, child.pid)
    step(child, watch)
    assert max(row["run_wait_pct"] or 0 for row in watch.rows) > 10
    assert watch.add("forced_switches") > 0


def test_everything_of_the_machine_is_listed_for_pid_zero(reader: Reader) -> None:
    watch = Watch(reader, 0)
    found = {row["process"]: row for row in watch.once()}
    assert {os.getppid(), 1} <= found.keys()
    assert Path("/proc/2/comm").read_text() != "kthreadd\n" or 2 not in found


def test_a_tree_is_not_read_again_while_nothing_was_started(tmp_path: Path) -> None:
    fake = make_proc(tmp_path)
    reader = Reader(str(fake))
    tree = reader.share(Tree)
    write_process(fake, 50, start=7, utime=1, io=0)
    reader.begin()
    assert [node.pid for node, _ in tree.list_below(50)] == [50]
    (fake / "51").mkdir()  # not by the kernel: the newest pid is still 50
    reader.begin()
    tree.list_below(50)
    assert 51 not in tree._known
    write_process(fake, 51, start=8, utime=1, io=0, newest=51)
    reader.begin()
    tree.list_below(50)
    assert 51 in tree._known
    reader.close()


def test_no_share_exceeds_all_processors_and_nothing_is_lost(tmp_path: Path) -> None:
    fake, clock = make_proc(tmp_path), iter(range(10**9, 10**12, 10**7))
    reader = Reader(str(fake), clock=lambda: next(clock))
    write_process(fake, 50, start=7, utime=1000, io=0)
    watch = Watch(reader, 50)
    write_process(fake, 50, start=7, utime=2000, io=0)  # ten seconds at once
    for _ in range(400):
        watch.once()
    limit = 100 * (os.cpu_count() or 1)
    assert max(row["user_pct"] + row["system_pct"] for row in watch.rows) <= limit + 1e-6
    assert watch.add_cpu_s("user_pct", "system_pct") == pytest.approx(10.0)
    reader.close()


@pytest.mark.parametrize(
    "said", [b"", b"1", b"1 (a", b"1 (a)", b"1 (a) S", b")( S 1", b"1 (a) S 1 2"]
)
def test_a_stat_that_makes_no_sense_is_an_error_and_no_number(tmp_path: Path, said: bytes) -> None:
    path = tmp_path / "stat"
    path.write_bytes(said)
    with path.open("rb") as file, pytest.raises(OSError, match="Invalid argument"):
        _core.process_read(os.getpid(), file.fileno(), -1, -1)


def test_a_process_that_has_not_run_is_not_read_again(tmp_path: Path, start) -> None:
    child = start(SLEEP)
    with Path(f"/proc/{child.pid}/stat").open("rb") as file:

        def is_asleep() -> object:
            first = _core.process_read(child.pid, file.fileno(), -1, -1)
            assert isinstance(first, tuple) and first[1] > 0
            return isinstance(_core.process_read(child.pid, file.fileno(), -1, first[1]), int)

        wait_for(is_asleep)


def test_what_a_process_that_does_not_run_waits_for_is_told_by_the_kernel(reader) -> None:
    wrote = subprocess.Popen(
        [sys.executable, "-S", "-c", "print('x' * 200_000)"], stdout=subprocess.PIPE
    )
    try:
        watch = Watch(reader, wrote.pid)
        watch.until(lambda: watch.rows and watch.rows[-1]["waits_in"] is not None)
        assert "pipe_write" in str(watch.rows[-1]["waits_in"])
        begun = next(at for at, row in enumerate(watch.rows) if row["waits_in"] is not None)
        assert all(row["user_pct"] == row["system_pct"] == 0 for row in watch.rows[begun:])
    finally:
        wrote.kill()
        wrote.communicate()


def test_a_process_that_runs_waits_for_nothing(reader) -> None:
    busy = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        watch = Watch(reader, busy.pid)
        watch.until(lambda: len(watch.rows) > 5)
        assert {row["waits_in"] for row in watch.rows if row["user_pct"]} == {None}
    finally:
        busy.kill()
        busy.wait()
