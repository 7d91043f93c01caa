"""What a program may do to us, and we must never do to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

import sonde
from conftest import find_processes, wait_for
from sonde import launch
from sonde.collector import loop, retention
from sonde.errors import Error, QueryError, SchemaError
from sonde.session import Session, files, list_sessions
from sonde.session.files import read_checked, write_checked
from sonde.store import archive

HEAD = """
import os, signal, sys, threading, time
import sonde
class Row:
    x: float
    name: str
emit = sonde.table(Row)
"""


def only_session() -> Session:
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    return session


def query(where: object, sql: str) -> list[dict[str, object]]:
    return sonde.open(where).query(sql).to_pylist()


# ---- the job ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["1.0", "'not a number'"])
def test_a_recording_may_end_inside_a_value(run, value: str) -> None:
    code = f"""
class Sly:
    def __float__(self):
        sonde.stop()
        return {value}
sonde.start(collector="off")
emit(1.0, "first")
emit(Sly(), "second")
emit(1.0, "third")
print("done")
"""
    assert run(HEAD + code).stdout.strip() == "done"


def test_ctrl_c_inside_a_value_reaches_the_program(run) -> None:
    code = """
class Slow:
    def __float__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10**6): pass
        return 1.0
sonde.start(collector="off")
try:
    emit(Slow(), "x")
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run(HEAD + code).stdout.strip() == "interrupted"


def test_an_exception_of_a_signal_handler_inside_start_reaches_the_program(run) -> None:
    code = """
def ring(*_):
    raise TimeoutError("mine")
signal.signal(signal.SIGALRM, ring)
# The first start imports, and Python itself loses a TimeoutError of a handler there: it takes it for one of the file.
sonde.start(collector="off", ring_bytes="64KiB", text_bytes="64KiB")
sonde.stop()
seen = tried = 0
for n in range(60):
    try:
        tried += 1  # before the clock is set, which may ring at once
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + n * 0.0001)
        while True:
            sonde.start(collector="off", ring_bytes="64KiB", text_bytes="64KiB")
            sonde.stop()
    except TimeoutError:
        seen += 1
sonde.start(collector="off")
emit(1.0, "still works")
print(seen == tried)
"""
    assert run(HEAD + code).stdout.strip() == "True"
    last = list(list_sessions(os.environ["SONDE_DIR"]))[-1]
    assert query(last.folder, "SELECT name FROM job.row") == [{"name": "still works"}]


def test_a_signal_handler_may_start_and_stop(run) -> None:
    code = """
inside = False
def ring(*_):
    global inside
    if not inside:          # the next one comes before this one is done
        inside = True
        sonde.stop(); sonde.start(collector="off", ring_bytes="64KiB", text_bytes="64KiB")
        inside = False
signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
end = time.monotonic() + 3
while time.monotonic() < end:
    sonde.start(collector="off", ring_bytes="64KiB", text_bytes="64KiB")
    emit(1.0, "x")
    sonde.stop()
signal.setitimer(signal.ITIMER_REAL, 0)
print("done")
"""
    done = run(HEAD + code)
    assert done.stdout.strip() == "done" and done.stderr == ""


def test_a_job_that_copies_its_own_folder_stays_alive(run) -> None:
    code = """
import shutil
folder = sonde.start(collector="off")
shutil.copytree(folder, folder + "-copy")
from sonde.session import Session
import subprocess
probe = "import sys; from sonde.session import Session; print(Session(sys.argv[1]).find_state())"
env = dict(os.environ, SONDE="0")
for name in (folder, folder + "-copy"):
    print(subprocess.run([sys.executable, "-c", probe, name], env=env, capture_output=True, text=True).stdout.strip())
"""
    assert run(HEAD + code).stdout.split()[0] == "running"


def test_a_job_that_closes_all_files_keeps_its_own(run, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    code = f"""
folder = sonde.start(collector="off")
emit(1.0, "before")
os.closerange(3, 4096)
mine = [os.open({str(victim)!r} + str(n), os.O_WRONLY | os.O_CREAT) for n in range(600)]
from sonde.session import Session
print(Session(folder).is_alive())
pid = os.fork()
if pid == 0:
    emit(2.0, "child")
    for fd in mine: os.write(fd, b"child")
    os._exit(0)
os.waitpid(pid, 0)
sonde.stop()
for fd in mine: os.write(fd, b"parent")
print("done")
"""
    done = run(
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))\n" + HEAD + code
    )
    assert done.stdout.split() == ["True", "done"]
    assert {Path(f"{victim}{n}").read_text() for n in range(600)} == {"childparent"}


def test_a_job_that_closes_all_files_is_sampled_on(run) -> None:
    code = """
folder = sonde.start(collector="off", stack_every="1ms")
os.closerange(3, 4096)
zeros = [os.open("/dev/zero", os.O_RDONLY) for n in range(600)]
def is_seen(func):
    rows = sonde.open(folder).query(f"SELECT func FROM python.frame WHERE func = '{func}'")
    return rows.num_rows > 0
def afterwards():
    end = time.monotonic() + 20
    while not is_seen("afterwards") and time.monotonic() < end: pass
afterwards()
print(is_seen("afterwards"))
"""
    done = run(
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))\n" + HEAD + code
    )
    assert done.stdout.strip() == "True"


def test_a_forked_child_does_not_hold_its_parents_memory(run) -> None:
    code = """
sonde.start(collector="off", follow=False)
def list_memory():
    return [n for n in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{n}") and os.readlink(f"/proc/self/fd/{n}").endswith("/mem")]
print(len(list_memory()), flush=True)
pid = os.fork()
if pid == 0:
    print(len(list_memory()), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
sonde.stop()
print(len(list_memory()))
"""
    assert run(HEAD + code).stdout.split() == ["1", "0", "0"]


def test_a_child_forked_in_c_does_not_end_the_parents_recording(run) -> None:
    code = """
import ctypes
folder = sonde.start(collector="off")
emit(1.0, "parent")
pid = ctypes.PyDLL(None).fork()
if pid == 0:
    emit(2.0, "child")
    sonde.stop()
    sys.exit(0)
os.waitpid(pid, 0)
emit(3.0, "parent")
print(folder)
"""
    folder = run(HEAD + code).stdout.split()[-1]
    assert query(folder, "SELECT x FROM job.row ORDER BY x") == [{"x": 1.0}, {"x": 3.0}]


def test_a_fork_during_the_first_start_does_not_hang_the_child(run) -> None:
    code = """
threading.Thread(target=sonde.start, kwargs={"collector": "off"}).start()
children = []
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        sonde.stop()
        os._exit(0)
    children.append(pid)
    time.sleep(0.001)
print({os.waitpid(pid, 0)[1] for pid in children})
"""
    assert run(HEAD + code).stdout.strip() == "{0}"


def test_a_fork_that_execs_leaves_no_session(run) -> None:
    code = """
import subprocess
sonde.start(collector="off", follow="on")
subprocess.run(["true"], preexec_fn=lambda: None, check=True)
"""
    run(HEAD + code)
    assert len(list(list_sessions(os.environ["SONDE_DIR"]))) == 1


def test_an_idle_child_begins_by_itself(run) -> None:
    code = """
sonde.start(collector="off")
pid = os.fork()
if pid == 0:
    end = time.monotonic() + 20
    while len([n for n in os.listdir(os.environ["SONDE_DIR"]) if n[0] != "."]) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    os._exit(0)
print(os.waitpid(pid, 0)[1])
"""
    assert run(HEAD + code).stdout.strip() == "0"


def test_a_child_may_end_just_when_its_session_would_begin(run) -> None:
    code = """
sonde.start(collector="off")
children = []
for n in range(40):
    pid = os.fork()
    if pid == 0:
        time.sleep(0.09 + n * 0.0005)
        sys.exit(0)
    children.append(pid)
print({os.waitpid(pid, 0)[1] for pid in children})
"""
    assert run(HEAD + code).stdout.strip() == "{0}"


def test_tables_that_are_never_written_take_no_room(run) -> None:
    folder = run(HEAD + "print(sonde.start(collector='off'))").stdout.strip()
    assert "job.row.ring" not in os.listdir(folder)


def test_failed_starts_leak_nothing(run, tmp_path: Path) -> None:
    code = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
before = len(os.listdir("/proc/self/fd"))
for _ in range(20):
    sonde.start(collector="off")
print(len(os.listdir("/proc/self/fd")) - before, os.listdir(os.environ["SONDE_DIR"]))
"""
    assert run(HEAD + code).stdout.strip() == "0 []"


def test_a_relative_root_means_the_same_in_a_child_elsewhere(run, tmp_path: Path) -> None:
    code = """
sonde.start(collector="off")
os.chdir("/")
pid = os.fork()
if pid == 0:
    emit(1.0, "child")
    os._exit(0)
os.waitpid(pid, 0)
print(len([n for n in os.listdir(sys.argv[1]) if n[0] != "."]))
"""
    where = os.path.relpath(tmp_path / "relative")
    assert run(HEAD + code, str(tmp_path / "relative"), SONDE_DIR=where).stdout.strip() == "2"


@pytest.mark.parametrize(
    "name", ["system.cpu", "sonde.loss", "python.gc_pause", "main.x", "event.span"]
)
def test_our_schemas_are_not_for_users_tables(name: str) -> None:
    with pytest.raises(SchemaError, match="reserved"):
        sonde.table(type("Row", (), {"__annotations__": {"x": "int"}}), name)


@pytest.mark.parametrize("kind", ["str", "float", "int | None", "u8"])
def test_a_time_is_a_whole_number_that_is_never_missing(kind: str) -> None:
    with pytest.raises(SchemaError, match="is a time"):
        sonde.table(
            type("Row", (), {"__annotations__": {"t_ns": kind, "x": "int"}}), "job.timeless"
        )


def test_only_truth_values_are_truth_values(run) -> None:
    code = """
class Flag:
    on: bool
flag = sonde.table(Flag)
folder = sonde.start(collector="off")
for value in (True, False, None, "no", 1, 0.0): flag(value)
print(folder)
"""
    folder = run(HEAD + code).stdout.strip()
    assert query(folder, 'SELECT "on" FROM job.flag ORDER BY 1') == [{"on": False}, {"on": True}]
    assert query(folder, "SELECT misfit FROM sonde.loss WHERE table_name='job.flag'") == [
        {"misfit": 4}
    ]


# ---- the collector -------------------------------------------------------------------------------

LIVE = (
    HEAD
    + """
sonde.start()
print("ready", flush=True)
while True:
    emit(1.0, "x"); time.sleep(0.01)
"""
)


def test_trouble_in_one_session_stays_its_own(start, run, root: Path) -> None:
    ended = [
        run(HEAD + "print(sonde.start(collector='off')); emit(1.0, 'x')").stdout.strip()
        for _ in range(4)
    ]
    Path(ended[0], "sealed.json").write_text("")
    Path(ended[1], "config.json").write_text("[]")
    Path(ended[2], "text.intern").write_bytes(b"x" * 99)
    Path(ended[3], "job.row.ring").unlink()
    os.mkfifo(Path(ended[3], "job.row.ring"))
    broken = start(LIVE, SONDE_COLLECTOR="off")
    session = next(s for s in list_sessions(str(root)) if s.pid == broken.pid)
    Path(session.path("text.intern")).unlink()
    good = start(LIVE)
    wait_for(lambda: query(good.pid, "SELECT COUNT(*) AS n FROM system.process")[0]["n"] >= 2)
    (pid,) = find_processes(str(root))
    time.sleep(2.5)
    assert find_processes(str(root)) == [pid]  # the same one, not one of many


def test_a_collector_that_has_worked_is_replaced_at_once_and_one_that_dies_young_later(
    start, root: Path
) -> None:
    for _ in range(3):
        start(LIVE)
    starts = Path(launch.collector_starts(str(root)))

    def kill(left: str) -> set[int]:
        """End the collector as if these starts had been made before; return its pid."""
        killed = set(find_processes(str(root)))
        for pid in killed:
            os.kill(pid, signal.SIGSTOP)  # or it might change the file
        starts.write_text(left)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not killed & set(find_processes(str(root))))
        return killed

    def keep_waiting() -> None:
        """Make every wait endless."""
        with suppress(FileNotFoundError):
            os.utime(starts)

    def has_worked() -> bool:
        # Several may have been started, of which all but one give way.
        is_one = launch.has_collector(str(root)) and len(find_processes(str(root))) == 1
        return is_one and not (starts.exists() and starts.read_text().endswith("+"))

    wait_for(has_worked)
    for left in ("++.", "." * 20):
        kill(left)
        wait_for(lambda: keep_waiting() or has_worked(), 60)
    for left in ("+" * 9, "." * 21):  # as if they had died at once, and as if too many had died
        kill(left)
        time.sleep(1.6)  # every job has looked three times
        assert find_processes(str(root)) == []
        os.utime(starts, (0, 0))
        wait_for(has_worked)


def test_a_killed_session_ended_when_it_was_killed(start, root: Path) -> None:
    process = start(LIVE)
    session = only_session()
    wait_for(lambda: query(process.pid, "SELECT COUNT(*) AS n FROM job.row")[0]["n"] > 200)
    process.kill()
    process.wait()
    killed = time.time()
    sealed = wait_for(session.read_sealed)
    assert abs(sealed.end_wall_ns / 1e9 - killed) < 2
    limits = {"retain.bytes": 2**30, "retain.age": 3600.0}
    assert retention.enforce_limits(str(root), limits) == []


def sealed_session(run, root: Path) -> Session:
    code = (
        HEAD
        + """
sonde.start(collector="off")
for n in range(3000): emit(float(n), f"row {n}")
"""
    )
    run(code)
    loop.Collector(str(root)).step(0.0)
    session = only_session()
    assert session.read_sealed()
    return session


def test_a_flipped_bit_in_the_archive_never_changes_a_row(run, root: Path) -> None:
    session = sealed_session(run, root)
    (segment,) = archive.list_segments(session, "job.row")
    sound = Path(segment.path).read_bytes()
    right = {(float(n), f"row {n}") for n in range(3000)}
    for place in range(0, len(sound), max(1, len(sound) // 60)):
        bad = bytearray(sound)
        bad[place] ^= 1 << (place % 8)
        Path(segment.path).write_bytes(bad)
        os.utime(segment.path, ns=(place, place))
        (loss,) = query(
            session.folder,
            "SELECT kept, corrupt, written, (SELECT list([CAST(x AS VARCHAR), name]) FROM job.row) "
            "AS rows FROM sonde.loss WHERE table_name='job.row'",
        )
        assert {(float(x), name) for x, name in loss.pop("rows") or ()} <= right
        assert loss == {"kept": 0, "corrupt": 3000, "written": 3000}


@pytest.mark.parametrize("name", ["meta.json", "sealed.json"])
def test_a_flipped_bit_in_a_json_file_is_noticed(run, root: Path, name: str) -> None:
    session = sealed_session(run, root)
    path = Path(session.path(name))
    sound = path.read_bytes()
    answer = query(session.folder, "SELECT * FROM sonde.loss ORDER BY table_name")
    for place in range(0, len(sound), max(1, len(sound) // 60)):
        bad = bytearray(sound)
        bad[place] ^= 1 << (place % 8)
        path.write_bytes(bad)
        try:
            assert query(session.folder, "SELECT * FROM sonde.loss ORDER BY table_name") == answer
        except Error as error:
            assert "\n" not in str(error)


def test_a_merge_that_was_cut_off_leaves_nothing_to_count_twice(run, root: Path) -> None:
    session = sealed_session(run, root)
    (whole,) = archive.list_segments(session, "job.row")
    rows = archive.read_segment(whole)
    archive.write_segment(session, "job.row", rows.slice(0, 1000), 0, 1000, 0)
    archive.write_segment(session, "job.row", rows.slice(1000), 1000, 3000, 0)
    assert query(session.folder, "SELECT COUNT(*) AS n FROM job.row") == [{"n": 3000}]
    archive.remove_leftovers(session, "job.row")
    kept, covered = archive.find_segments(session, "job.row")
    assert [segment.path for segment in kept] == [whole.path] and covered == []


def test_a_disk_without_room_is_freed_by_retention_all_the_same(
    start, root: Path, monkeypatch
) -> None:
    process = start(LIVE.replace("time.sleep(0.01)", "pass"), SONDE_RING_BYTES="256KiB")
    session = only_session()
    wait_for(lambda: len(archive.list_segments(session, "job.row")) >= 3)
    process.kill()

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_checked", full)
    segment = archive.list_segments(session, "job.row")[0]
    with pytest.raises(OSError, match="No space"):
        archive.expire(session, "job.row", segment)
    assert not os.path.exists(segment.path)


# ---- the reader ----------------------------------------------------------------------------------

SHAPE = """
import sonde, sys, json
columns = json.loads(sys.argv[1])
emit = sonde.table(type("Row", (), {"__annotations__": columns}))
print(sonde.start(collector="off"))
emit(*json.loads(sys.argv[2]))
"""


def test_sessions_with_other_columns_read_as_one(run, root: Path) -> None:
    for columns, values in (
        ({"step": "int", "loss": "float"}, [1, 0.5]), ({"step": "int", "acc": "float"}, [2, 0.9]),
        ({"step": "float", "acc": "str"}, [2.5, "good"]),
    ):  # fmt: skip
        run(SHAPE, json.dumps(columns), json.dumps(values))
    expected = [
        {"step": 1.0, "loss": 0.5, "acc": None}, {"step": 2.0, "loss": None, "acc": "0.9"},
        {"step": 2.5, "loss": None, "acc": "good"},
    ]  # fmt: skip
    sql = "SELECT step, loss, acc FROM job.row ORDER BY step"
    assert query("all", sql) == expected
    for _ in list_sessions(str(root)):
        loop.Collector(str(root)).step(0.0)  # one scan seals for half a second
    assert all(session.read_sealed() for session in list_sessions(str(root)))
    assert query("all", sql) == expected


def test_many_ended_sessions_are_one_query(run, root: Path) -> None:
    session = sealed_session(run, root)
    for n in range(600):
        copy = Path(f"{session.folder}-{n}")
        shutil.copytree(session.folder, copy)
        write_checked(
            str(copy / "meta.json"), {**read_checked(str(copy / "meta.json")), "id": copy.name}
        )
    assert query("all", "SELECT COUNT(*) AS n FROM job.row") == [{"n": 601 * 3000}]


def test_times_are_utc_wherever_they_are_read(run, root: Path, sonde_cli) -> None:
    session = sealed_session(run, root)
    here = sonde_cli("query", session.folder, "SELECT ts, ts::date AS day FROM job.row LIMIT 1")
    there = sonde_cli(
        "query", session.folder, "SELECT ts, ts::date AS day FROM job.row LIMIT 1", TZ="Asia/Tokyo"
    )
    assert here.stdout == there.stdout and here.returncode == 0


def test_an_answer_that_is_too_large_is_refused(run, root: Path) -> None:
    session = sealed_session(run, root)
    with pytest.raises(QueryError, match="needs more than"):
        sonde.open(session.folder).query(
            "SELECT repeat('x', 1000) FROM range(1000000)", memory="100MB"
        )


def test_a_query_that_does_not_heed_is_left_behind(run, root: Path, sonde_cli) -> None:
    session = sealed_session(run, root)
    begin = time.monotonic()
    sql = "SELECT levenshtein(repeat('a', 120000), repeat('b', 120000))"
    done = sonde_cli("query", session.folder, sql, "--timeout", "1")
    assert done.returncode == 5 and "stopped after 1 s" in done.stderr
    assert time.monotonic() - begin < 30


def test_formats_hold_what_is_odd(run, root: Path, sonde_cli) -> None:
    session = sealed_session(run, root)
    twice = sonde_cli("query", session.folder, "SELECT 1 AS a, 2 AS a", "--format", "json")
    assert json.loads(twice.stdout) == [{"a": 1, "a_2": 2}]
    span = sonde_cli("query", session.folder, "SELECT INTERVAL '1 day 2 hours' AS i")
    assert span.stdout.split("\n")[1] == "1 days 2:00:00"
    refused = sonde_cli(
        "query", session.folder, "SELECT INTERVAL '1 day' AS i", "--format", "parquet"
    )
    assert refused.returncode in (0, 1) and "Traceback" not in refused.stderr
    plan = sonde_cli("query", session.folder, "EXPLAIN SELECT 1")
    assert "\\u" not in plan.stdout and len(plan.stdout.splitlines()) > 2
    pivot = sonde_cli("query", session.folder, "PIVOT job.row ON name USING sum(x)")
    assert pivot.returncode == 5 and "name the values of PIVOT" in pivot.stderr
    money = sonde_cli(
        "query",
        session.folder,
        "SELECT 1.50::DECIMAL(9,2) AS d UNION ALL SELECT 1",
        "--format",
        "json",
    )
    assert [row["d"] for row in json.loads(money.stdout)] == ["1.50", "1.00"]
