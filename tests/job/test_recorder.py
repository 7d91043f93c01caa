"""The recording of a process: start, stop, threads, forks, ends; and never in the way."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import sonde
from conftest import wait_for
from sonde.collector.retention import measure_bytes
from sonde.errors import ConfigError, SchemaError
from sonde.session import Session, list_sessions
from sonde.session.ending import find_ending
from sonde.session.target import find_sessions
from support.many_threads import check_threads

pytestmark = pytest.mark.usefixtures("no_collector")


class Point:
    """A row of these tests."""

    x: int
    name: str | None


def read(folder: str | Path, sql: str) -> list[dict[str, object]]:
    return sonde.open(str(folder)).query(sql).to_pylist()


def test_start_and_stop_are_idempotent() -> None:
    first = sonde.start(collector="off")
    assert first and sonde.start() == first
    sonde.stop()
    sonde.stop()
    second = sonde.start(collector="off")
    assert second != first
    assert Session(first).find_state() == "ended" and Session(second).find_state() == "running"


def test_a_table_made_before_start_works_across_stop_and_start() -> None:
    emit = sonde.table(Point, "job.across")
    emit(1, "lost: not started")
    first = sonde.start(collector="off")
    emit(2, "a")
    sonde.stop()
    emit(3, "lost: stopped")
    second = sonde.start(collector="off")
    emit(4, "b")
    assert read(first, "SELECT x, name FROM job.across") == [{"x": 2, "name": "a"}]
    assert read(second, "SELECT x, name FROM job.across") == [{"x": 4, "name": "b"}]


def test_the_same_table_twice_is_one_and_another_shape_is_refused() -> None:
    assert sonde.table(Point, "job.twice") is sonde.table(Point, "job.twice")
    with pytest.raises(SchemaError, match="other columns"):
        sonde.table(type("Point", (), {"__annotations__": {"y": "int"}}), "job.twice")


def test_pause_and_resume_drop_and_take_rows() -> None:
    emit = sonde.table(Point, "job.paused")
    folder = sonde.start(collector="off")
    emit(1, None)
    sonde.pause()
    emit(2, None)
    sonde.resume()
    emit(3, None)
    assert read(folder, "SELECT x FROM job.paused ORDER BY x") == [{"x": 1}, {"x": 3}]


def test_a_value_that_does_not_fit_is_counted_and_raises_nothing() -> None:
    emit = sonde.table(Point, "job.misfit")
    folder = sonde.start(collector="off")
    emit(2**63, "too large")
    emit("one", "not a number")
    emit(1)
    emit(1, 2)
    emit(x=1, name="by name")
    emit(2**63 - 1, "fits")
    assert read(folder, "SELECT x, name FROM job.misfit") == [{"x": 2**63 - 1, "name": "fits"}]
    loss = read(
        folder, "SELECT written, kept, misfit FROM sonde.loss WHERE table_name='job.misfit'"
    )
    assert loss == [{"written": 1, "kept": 1, "misfit": 5}]


def test_wrong_settings_are_refused_at_the_call() -> None:
    with pytest.raises(ConfigError, match="did you mean collector"):
        sonde.start(colector="off")


def test_many_threads_start_stop_and_write_at_once() -> None:
    emit = sonde.table(Point, "job.threads")

    def work(number: int) -> None:
        for i in range(50):
            sonde.start(collector="off")
            emit(number * 1000 + i, f"thread {number}")
            if i % 10 == 9:
                sonde.stop()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sonde.stop()
    assert all(s.find_state() == "ended" for s in list_sessions(os.environ["SONDE_DIR"]))


def test_thousands_of_threads_write_one_table(root: Path) -> None:
    check_threads(2_000, root)  # tests/stress/threads.py has ten thousand


# ---- forks -------------------------------------------------------------------------------------


def test_a_forked_child_has_a_session_of_its_own(run) -> None:
    code = """
import os, sonde
class Point:
    x: int
emit = sonde.table(Point)
print(sonde.start(collector="off"), flush=True)
emit(os.getpid())
for _ in range(3):
    if os.fork() == 0:
        emit(os.getpid())
        os._exit(0)
for _ in range(3):
    os.wait()
emit(os.getpid())
"""
    run(code)
    sessions = list(list_sessions(os.environ["SONDE_DIR"]))
    assert len(sessions) == 4
    parent = sessions[0]
    for session in sessions:
        rows = read(session.folder, "SELECT DISTINCT x FROM job.point")
        assert rows == [{"x": session.pid}]
    assert all(child.meta.parent == parent.id for child in sessions[1:])
    assert parent.find_state() == "ended"
    assert [find_ending(child).code for child in sessions[1:]] == [0] * 3  # os._exit is no crash


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_children_are_recorded_and_end(run, method: str) -> None:
    code = f"""
import multiprocessing, os, sys
import sonde
class Point:
    x: int
emit = sonde.table(Point)
def work(n):
    emit(n)
    return os.getpid()
if __name__ == "__main__":
    sonde.start(collector="off")
    context = multiprocessing.get_context({method!r})
    children = [context.Process(target=work, args=(n,)) for n in range(3)]
    [c.start() for c in children]; [c.join() for c in children]
    print(*[c.pid for c in children])
    assert [c.exitcode for c in children] == [0, 0, 0]
"""
    pids = {int(word) for word in run(code, SONDE_COLLECTOR="off").stdout.split()}
    sessions = {s.pid: s for s in list_sessions(os.environ["SONDE_DIR"])}
    assert pids <= set(sessions)
    seen = sorted(read(sessions[pid].folder, "SELECT x FROM job.point")[0]["x"] for pid in pids)
    assert seen == [0, 1, 2]
    assert {find_ending(sessions[pid]).code for pid in pids} == {0}


def test_children_are_left_alone_when_asked(run) -> None:
    code = """
import os, subprocess, sys, sonde
sonde.start(collector="off", follow="off")
if os.fork() == 0:
    os._exit(0)
os.wait()
subprocess.run([sys.executable, "-c", "pass"], check=True)
"""
    run(code)
    assert len(list(list_sessions(os.environ["SONDE_DIR"]))) == 1


def test_start_leaves_no_child_to_wait_for_and_sends_no_signal(run) -> None:
    code = """
import os, signal, time, sonde
got = []
signal.signal(signal.SIGCHLD, lambda *a: got.append(a))
sonde.start()
deadline = time.monotonic() + 5
while time.monotonic() < deadline and not any("collector" in n for n in os.listdir(os.environ["SONDE_DIR"])):
    time.sleep(0.05)
time.sleep(0.5)
try:
    os.waitpid(-1, os.WNOHANG)
    print("a child")
except ChildProcessError:
    print("no child")
print(len(got))
"""
    assert run(code).stdout.split("\n")[:2] == ["no child", "0"]


# ---- ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "code", "state"),
    [
        ("pass", 0, "ended"),
        ("raise SystemExit(7)", 7, "ended"),
        ("1 / 0", 1, "ended"),
        ("import os; os._exit(5)", 5, "ended"),
        ("import os, pickle; pickle.loads(pickle.dumps(os._exit))", 0, "ended"),
        ("import os; os.abort()", -signal.SIGABRT, "killed"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "killed"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "killed"),
    ],
)
def test_the_exit_status_is_the_programs_own(run, ending: str, code: int, state: str) -> None:
    done = run(
        f"import sonde, gc; sonde.start(collector='off'); gc.collect()\n{ending}", check=False
    )
    assert done.returncode == code
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    assert session.find_state() == state
    found = find_ending(session)
    assert found.code == (code if state == "ended" else None)
    assert (found.exception == "ZeroDivisionError: division by zero") == (ending == "1 / 0")
    assert read(session.folder, "SELECT COUNT(*) > 0 AS any FROM python.gc_pause") == [
        {"any": True}
    ]


def test_a_program_that_becomes_another_by_exec_has_ended(run) -> None:
    code = "import sonde, os, sys; sonde.start(collector='off'); os.execv('/bin/sleep', ['sleep', '0'])"
    run(code)
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    assert session.find_state() in ("ended", "killed")


def test_an_exec_into_a_recorded_python_starts_a_new_session(run) -> None:
    code = """
import os, sys
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, __file__, "again"])
"""
    run(code, SONDE="1", SONDE_COLLECTOR="off")
    first, second = list_sessions(os.environ["SONDE_DIR"])
    assert first.pid == second.pid and first.id != second.id
    assert second.find_state() == "ended"


def test_the_users_signal_handlers_are_untouched(run) -> None:
    code = """
import os, signal, sonde
signal.signal(signal.SIGTERM, lambda *a: print("mine", flush=True))
sonde.start(collector="off")
os.kill(os.getpid(), signal.SIGTERM)
sonde.stop()
print([signal.getsignal(s) for s in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGPROF)].count(signal.SIG_DFL))
"""
    assert run(code).stdout.split() == ["mine", "3"]


def test_ctrl_c_reaches_the_program_even_in_a_garbage_collection(start) -> None:
    code = """
import gc, sonde
sonde.start(collector="off")
try:
    print("ready", flush=True)
    while True:
        gc.collect(0)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    for _ in range(10):
        process = start(code)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
        assert out.strip() == "interrupted", err


# ---- when recording is not possible ------------------------------------------------------------

BLAMELESS = "import sonde; print(sonde.start(collector='off')); print('done')"


def assert_unrecorded(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0
    assert done.stdout.split() == ["None", "done"]
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("sonde: not recording: ")


def test_a_root_that_cannot_be_made_costs_one_line(run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_unrecorded(run(BLAMELESS, SONDE_DIR=str(tmp_path / "file" / "sonde")))


def test_no_room_for_files_costs_one_line(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + BLAMELESS)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16)),
    )  # fmt: skip
    assert_unrecorded(done)
    assert not list(list_sessions(os.environ["SONDE_DIR"]))
    assert not [n for n in os.listdir(os.environ["SONDE_DIR"]) if n.endswith(".new")]


def test_no_address_space_for_maps_costs_one_line(run) -> None:
    limit = """
import resource
import sonde.job.recorder
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**21, size + 2**21))
"""
    assert_unrecorded(run(limit + BLAMELESS))


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 24 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("needs the right to mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


TABLES = """
import sonde
rows = [type(f"Row{i}", (), {"__annotations__": {"x": "int"}}) for i in range(4)]
print(bool(sonde.start(collector="off", source_stack="off")))
for row in rows:
    emit = sonde.table(row)
    for i in range(300_000):
        emit(i)
print("done")
"""


def count_kept(folder: str) -> dict[str, int]:
    rows = read(folder, "SELECT table_name, kept FROM sonde.loss")
    return {row["table_name"]: row["kept"] for row in rows}


def fill(disk: Path, left: int) -> None:
    with open(disk / "filler", "wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, 24 * 2**20 - left)


def test_a_disk_that_fills_up_takes_tables_but_never_the_program(run, small_disk: Path) -> None:
    fill(small_disk, 2**20)
    done = run(TABLES, SONDE_DIR=str(small_disk / "sonde"))
    assert done.stdout.split() == ["True", "done"]
    (session,) = list_sessions(str(small_disk / "sonde"))
    (lost,) = read(session.folder, "SELECT pages_lost FROM sonde.session")
    assert lost["pages_lost"] > 0
    kept = count_kept(session.folder)
    assert kept["job.row0"] == 8192 > kept.get("job.row3", 0)


FAULT = """
import os, sys
from sonde.collector.lock import take_lock
os.makedirs(os.environ["SONDE_DIR"], 0o700)
lock = take_lock(os.environ["SONDE_DIR"])  # nobody else can be the collector
import sonde
assert sonde.start()
try:
    with open(sys.argv[1], "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
except OSError:
    os.abort()
"""


def test_a_fault_leaves_no_empty_file_on_a_full_disk(run, small_disk: Path) -> None:
    root = small_disk / "sonde"
    files = {"SONDE_DIR": str(root), "SONDE_COLLECTOR": "on"}
    done = run(FAULT, str(small_disk / "filler"), check=False, **files)
    assert done.returncode == -signal.SIGABRT
    assert list(root.glob("*/control")) and not list(root.glob("*/crash.stacks"))


def test_starting_imports_no_module_that_is_slow_to_import(run_anew) -> None:
    code = "import sonde, sys\nsonde.start(collector='off')\nprint(*{slow} & set(sys.modules))"
    done = run_anew(
        code.replace("{slow}", "{'collections', 'typing', 're', 'dataclasses', 'logging'}")
    )
    assert done.stdout.split() == []


def test_where_files_are_memory_they_take_a_share_of_it(run, small_disk: Path) -> None:
    done = run(TABLES, SONDE_DIR=str(small_disk / "sonde"))
    assert done.stdout.split() == ["True", "done"]
    (session,) = list_sessions(str(small_disk / "sonde"))
    assert measure_bytes(session.folder) < 24 * 2**20 // 8
    assert min(count_kept(session.folder)[f"job.row{i}"] for i in range(4)) > 5000
    assert session.read_config()["ring.bytes"] == 24 * 2**20 // 64


def test_a_full_disk_at_the_start_costs_one_line(run, small_disk: Path) -> None:
    fill(small_disk, 2 * 4096)
    assert_unrecorded(run(BLAMELESS, SONDE_DIR=str(small_disk / "sonde")))


def test_a_read_only_file_system_costs_one_line(run, small_disk: Path) -> None:
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True)
    assert_unrecorded(run(BLAMELESS, SONDE_DIR=str(small_disk / "sonde")))


def test_another_users_root_is_refused(run, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs to be root to give a folder away")
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    assert_unrecorded(run(BLAMELESS, SONDE_DIR=str(folder)))


def test_a_root_that_others_can_write_is_refused(run, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert_unrecorded(run(BLAMELESS, SONDE_DIR=str(folder)))


def test_a_source_that_breaks_is_switched_off_and_reported(run) -> None:
    code = """
import sys, types, sonde
from sonde import plugins
module = types.ModuleType("sonde.job.sources.gc", "Broken.")
class Source:
    def __init__(self, host): self.hit = host.guard(self._hit)
    def start(self): self.hit(); self.hit()
    def stop(self): pass
    def _hit(self): raise RuntimeError("boom")
module.Source = Source
sys.modules["sonde.job.sources.gc"] = module
print(sonde.start(collector="off"))
"""
    folder = run(code).stdout.strip()
    rows = read(
        folder, "SELECT state, detail FROM sonde.source_log WHERE source='gc' ORDER BY t_ns"
    )
    assert {"state": "failed", "detail": "RuntimeError: boom"} in rows
    assert len([row for row in rows if row["state"] == "failed"]) == 1


# ---- what is written ---------------------------------------------------------------------------


def test_the_session_is_the_users_alone() -> None:
    folder = sonde.start(collector="off")
    assert os.stat(os.path.dirname(folder)).st_mode & 0o777 == 0o700
    assert os.stat(folder).st_mode & 0o777 == 0o700
    modes = {
        name: os.stat(os.path.join(folder, name)).st_mode & 0o777 for name in os.listdir(folder)
    }
    assert set(modes.values()) == {0o600}, modes


def test_meta_says_who_it_was(run) -> None:
    env = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "job-7"}
    folder = run(
        "import sonde; print(sonde.start(collector='off'))", "--lr", "1", **env
    ).stdout.strip()
    meta = json.loads(Path(folder, "meta.json").read_text())
    assert meta["argv"][-2:] == ["--lr", "1"]
    assert (meta["rank"], meta["world_size"], meta["local_rank"], meta["job"]) == (1, 4, 1, "job-7")
    rows = read(folder, "SELECT rank, job, launcher, command FROM sonde.session")
    assert rows[0]["rank"] == 1 and rows[0]["job"] == "job-7" and rows[0]["launcher"] == "torchrun"


def test_stop_by_another_thread_while_rows_are_written(run) -> None:
    code = """
import threading, sonde
class Point:
    x: int
emit = sonde.table(Point)
sonde.start(collector="off")
done = threading.Event()
def write():
    i = 0
    while not done.is_set():
        emit(i); i += 1
threads = [threading.Thread(target=write) for _ in range(2)]
[t.start() for t in threads]
for _ in range(10):
    sonde.stop(); sonde.start(collector="off", ring_bytes="64KiB")
done.set(); [t.join() for t in threads]
print("done")
"""
    assert run(code).stdout.strip() == "done"


def test_the_native_thread_is_the_only_one_and_goes_with_stop() -> None:
    def count() -> int:
        names = [
            Path(f"/proc/self/task/{t}/comm").read_text().strip()
            for t in os.listdir("/proc/self/task")
        ]
        return names.count("sonde")

    threads = threading.active_count()
    sonde.start(collector="off")
    wait_for(lambda: count() == 1, 5)
    assert threading.active_count() == threads
    sonde.stop()
    assert count() == 0


def test_what_one_command_started_is_one_job_and_its_name_a_target(run, sonde_cli) -> None:
    code = """
import os, subprocess, sys, time
if len(sys.argv) == 1:
    if os.fork() == 0:
        time.sleep(0.5)
        os._exit(3)
    subprocess.run([sys.executable, __file__, "child"], check=True)
    os.wait()
else:
    time.sleep(0.5)
"""
    run(code, SONDE="1", SONDE_COLLECTOR="off")
    root = os.environ["SONDE_DIR"]
    sessions = list(list_sessions(root))
    (job,) = {session.meta.job for session in sessions}
    assert len(sessions) == 3 and job == f"program-{sessions[0].pid}"
    for name in ("program", "program.py", job):
        assert len(find_sessions(name, root)) == 3
    done = sonde_cli("stacks", "progam")
    assert done.returncode == 3 and "did you mean program" in done.stderr
    run(
        "import sonde, os; sonde.start(collector='off'); sonde.stop(); assert 'SONDE_COMMAND' not in os.environ"
    )
