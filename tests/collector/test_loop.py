"""The collector: archives, takes over, seals, retains; and one session's trouble is its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

import sonde
from conftest import find_processes, wait_for
from sonde.collector import loop, retention
from sonde.collector.process_end import KillCounts
from sonde.collector.sensors import _gpu_client
from sonde.collector.sensors._files import Reader
from sonde.job.recorder import recorder
from sonde.session import Session, list_sessions
from sonde.session.schema import i64
from sonde.store import archive
from sonde.tables.recording import SourceLog

STREAM = """
import sys, time, sonde
class Row:
    n: int
    name: str
emit = sonde.table(Row)
sonde.start()
def is_up():
    import glob, os
    return any(os.path.getsize(path) for path in glob.glob(os.environ["SONDE_DIR"] + "/.collector-*.lock"))
while "patient" in sys.argv and not is_up():
    time.sleep(0.05)       # a small ring overflows before the collector has started
print("ready", flush=True)
rate, seconds = int(sys.argv[1]), float(sys.argv[2])
begin, n = time.monotonic(), 0
while (passed := time.monotonic() - begin) < seconds:
    while n < passed * rate:
        emit(n, "row"); n += 1
    time.sleep(0.002)
print(n, flush=True)
time.sleep(float(sys.argv[3]))
"""


def only_session() -> Session:
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    return session


def query(session: Session, sql: str) -> list[dict[str, object]]:
    return sonde.open(session.folder).query(sql).to_pylist()


def collectors(root: Path) -> list[int]:
    return find_processes(str(root))


def test_no_row_is_lost_at_a_hundred_thousand_a_second(start, root: Path) -> None:
    process = start(STREAM, "100000", "6", "0")
    out, _ = process.communicate(timeout=240)
    written = int(out.split()[-1])
    session = only_session()
    wait_for(lambda: session.read_sealed() is not None)
    (row,) = query(
        session, "SELECT COUNT(*) AS n, COUNT(DISTINCT n) AS d, MAX(n) AS top FROM job.row"
    )
    assert row == {"n": written, "d": written, "top": written - 1} and written > 400_000
    (loss,) = query(session, "SELECT * FROM sonde.loss WHERE table_name = 'job.row'")
    assert loss["written"] == loss["kept"] == written


def test_live_and_archived_rows_are_one_table_without_gaps_or_doubles(start, root: Path) -> None:
    process = start(STREAM, "60000", "5", "600", "patient", SONDE_RING_BYTES="4MiB")
    sql = "SELECT COUNT(*) AS n, COUNT(DISTINCT n) AS d, MIN(n) AS low, MAX(n) AS top FROM job.row"
    session = only_session()
    wait_for(lambda: archive.list_segments(session, "job.row"))
    seen = 0
    for _ in range(12):
        (row,) = query(session, sql)
        assert row["n"] == row["d"] == row["top"] - row["low"] + 1 and row["low"] == 0
        assert row["n"] >= seen
        seen = row["n"]
    assert process.poll() is None and seen > 10_000


def test_the_archive_opens_in_other_readers(start, root: Path) -> None:
    process = start(STREAM, "1000", "1", "0")
    process.communicate(timeout=240)
    session = only_session()
    wait_for(lambda: session.read_sealed() is not None)
    (segment,) = archive.list_segments(session, "job.row")
    table = pq.read_table(segment.path)
    assert table.column_names == ["t_ns", "n", "name", "ts", "host", "pid", "rank"]
    assert str(table.schema.field("ts").type) == "timestamp[us, tz=UTC]"
    assert pq.read_metadata(segment.path).row_group(0).column(0).compression == "ZSTD"
    glob = str(root / "*" / "archive" / "job.row" / "*" / "*.parquet")
    found = duckdb.sql(f"SELECT COUNT(*), ANY_VALUE(pid) FROM read_parquet('{glob}')").fetchall()
    assert found == [(table.num_rows, process.pid)]
    assert os.stat(segment.path).st_mode & 0o777 == 0o600


def test_small_segments_are_merged_and_none_lost(start, root: Path) -> None:
    process = start(STREAM, "50000", "5", "0", "patient", SONDE_RING_BYTES="2MiB")
    out, _ = process.communicate(timeout=240)
    session = only_session()
    wait_for(lambda: session.read_sealed() is not None)
    segments = archive.list_segments(session, "job.row")
    quarter = 2**15 // 4  # of the ring's slots: what is archived at once
    assert max(segment.last - segment.first for segment in segments) >= 8 * quarter
    (loss,) = query(session, "SELECT * FROM sonde.loss WHERE table_name = 'job.row'")
    assert loss["written"] == int(out.split()[-1])
    assert archive.count_rows(segments) == loss["kept"] == loss["written"] - loss["overwritten"]


def test_there_is_one_collector_for_all_sessions(start, root: Path) -> None:
    for _ in range(4):
        start(STREAM, "100", "3000", "0")

    def is_only() -> bool:
        seen = set()
        for _ in range(20):  # one that finds the lock taken gives up after a second
            seen |= set(collectors(root))
            time.sleep(0.1)
        return len(seen) == 1

    wait_for(lambda: len(list(list_sessions(str(root)))) == 4)
    wait_for(is_only)


def test_another_takes_over_after_a_crash(start, root: Path) -> None:
    start(STREAM, "20000", "60", "0", SONDE_RING_BYTES="1MiB")
    session = only_session()
    wait_for(lambda: archive.list_segments(session, "job.row"))
    first = collectors(root)
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: set(collectors(root)) - set(first))
    before = archive.list_segments(session, "job.row")[-1].last
    wait_for(lambda: archive.list_segments(session, "job.row")[-1].last > before)
    (loss,) = query(session, "SELECT * FROM sonde.loss WHERE table_name = 'job.row'")
    parts = ("kept", "dropped", "unfinished", "overwritten", "corrupt", "expired")
    assert sum(loss[key] for key in parts) == loss["written"]


def test_a_collector_leaves_when_nobody_needs_it(root: Path, monkeypatch) -> None:
    monkeypatch.setattr(loop, "LINGER_S", 0.3)
    root.mkdir(mode=0o700)
    loop.Collector(str(root)).run()


def test_a_killed_session_is_archived_and_sealed(start, root: Path) -> None:
    process = start(STREAM, "1000", "60", "0")
    session = only_session()
    wait_for(lambda: query(session, "SELECT COUNT(*) AS n FROM job.row")[0]["n"] > 500)
    process.kill()
    process.wait()
    wait_for(lambda: session.read_sealed() is not None)
    assert session.find_state() == "killed"
    wait_for(lambda: session.find_rings() == [])  # they are removed after that
    (row,) = query(
        session, "SELECT COUNT(*) AS n, MAX(n) + 1 AS top, ANY_VALUE(name) AS w FROM job.row"
    )
    assert row["n"] == row["top"] > 500 and row["w"] == "row"
    assert retention.measure_bytes(session.folder) < 2**20


def test_the_host_sensor_agrees_with_the_kernel(start, root: Path) -> None:
    burn = """
import sonde, time, resource
sonde.start()
print("ready", flush=True)
end = time.monotonic() + 5
while time.monotonic() < end: pass
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
time.sleep(1.5)
"""
    process = start(burn)
    out, _ = process.communicate(timeout=240)
    session = only_session()
    wait_for(lambda: session.read_sealed() is not None)
    (row,) = query(
        session,
        "SELECT SUM((user_pct + system_pct) / 100 * interval_ns) / 1e9 AS cpu_s, "
        "MIN(rss_bytes) AS rss, MAX(user_pct + system_pct) AS top FROM system.process WHERE depth = 0",
    )
    # The first reading comes when the collector is up; what it saw cannot exceed what was used.
    assert 0.3 * float(out) < row["cpu_s"] <= float(out) * 1.02 + 0.1
    assert row["top"] < 115 and row["rss"] > 5 * 2**20
    (cpu,) = query(session, "SELECT MIN(cores) AS cores, MAX(busy_pct) AS busy FROM system.cpu")
    assert cpu["cores"] == os.cpu_count() and 0 < cpu["busy"] <= 100
    (memory,) = query(session, "SELECT MAX(total_bytes) AS total FROM system.memory")
    assert memory["total"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    sources = query(session, "SELECT source, state FROM sonde.source ORDER BY source")
    assert {"source": "cpu", "state": "on"} in sources


def test_rows_about_the_machine_are_not_doubled_across_sessions(start, root: Path) -> None:
    first, second = (start(STREAM, "10", "30", "0") for _ in range(2))
    both = f"{first.pid},{second.pid}"
    sql = "SELECT COUNT(*) AS n, COUNT(DISTINCT t_ns) AS d, COUNT(pid) AS pids FROM system.memory"

    def measured() -> object:
        (row,) = sonde.open(both).query(sql).to_pylist()
        return row["n"] >= 3 and row

    row = wait_for(measured)
    assert row["n"] == row["d"] and row["pids"] == 0
    pids = "SELECT COUNT(DISTINCT pid) AS p FROM system.process"
    wait_for(lambda: sonde.open(both).query(pids).to_pylist() == [{"p": 2}])


def test_a_damaged_neighbour_does_not_stop_the_rest(start, root: Path) -> None:
    process = start(STREAM, "100", "1", "0", SONDE_COLLECTOR="off")
    process.communicate(timeout=240)
    broken = only_session()
    Path(broken.path("job.row.ring")).write_bytes(b"garbage" * 100)
    (root / "not-a-session").mkdir()
    process = start(STREAM, "1000", "1", "0")
    process.communicate(timeout=240)
    good = next(s for s in list_sessions(str(root)) if s.pid == process.pid)
    wait_for(lambda: good.read_sealed() is not None)


def test_with_the_archive_off_the_rings_stay(start, root: Path) -> None:
    process = start(STREAM, "1000", "1", "0", SONDE_ARCHIVE="off")
    process.communicate(timeout=240)
    session = only_session()
    wait_for(lambda: session.find_state() == "ended")
    one = loop.Collector(str(root))
    one.step(0.0)
    assert session.read_sealed() is None and session.find_rings()
    assert query(session, "SELECT COUNT(*) > 900 AS ok FROM job.row") == [{"ok": True}]


def test_what_another_collector_has_sealed_is_not_sealed_again(run, root: Path) -> None:
    code = """
import sonde
class Row:
    n: int
emit = sonde.table(Row)
sonde.start(collector="off")
for n in range(100): emit(n)
"""
    run(code)
    session = only_session()
    late = loop.Watched(session, KillCounts(Reader()))
    loop.Collector(str(root)).step(0.0)
    late.seal()
    assert query(Session(session.folder), "SELECT COUNT(*) AS n FROM job.row") == [{"n": 100}]


def test_a_rank_that_is_learnt_is_taken_over_and_damage_is_not() -> None:
    folder = sonde.start(collector="off")
    assert folder is not None
    session = recorder.session  # the writer's side of it
    assert session is not None
    watched = loop.Watched(Session(folder), KillCounts(Reader()))
    assert watched.session.rank is None
    session.learn_rank(3, 8)
    session.learn_rank(4, 8)  # it is learnt once
    watched.refresh()
    assert (watched.session.rank, Session(folder).rank) == (3, 3)
    Path(folder, "meta.json").write_bytes(b"?")
    watched.refresh()
    assert (watched.session.rank, watched.session.pid) == (3, os.getpid())


def test_a_hundred_sessions_are_fine(root: Path, sonde_cli, run, monkeypatch) -> None:
    code = """
import os, sonde
class Row:
    n: int
emit = sonde.table(Row)
sonde.start(collector="off", ring_bytes="16KiB", text_bytes="16KiB")
for _ in range(99):
    if os.fork() == 0:
        emit(1)
        os._exit(0)
for _ in range(99):
    os.wait()
"""
    run(code)
    assert len(list(list_sessions(str(root)))) == 100
    rows = sonde.open("all").query(
        "SELECT COUNT(*) AS n, COUNT(DISTINCT pid) AS p FROM sonde.session"
    )
    assert rows.to_pylist() == [{"n": 100, "p": 100}]
    monkeypatch.setattr(_gpu_client, "_SIGNS", ())  # or a process that queries GPUs would stay
    sealing = loop.Collector(str(root))
    monkeypatch.setattr(loop, "SEAL_S", 0.0)
    sealing.step(0.0)
    assert sum(session.read_sealed() is not None for session in list_sessions(str(root))) == 0
    monkeypatch.setattr(loop, "SEAL_S", 600.0)
    sealing.step(2.0)
    assert sum(session.read_sealed() is not None for session in list_sessions(str(root))) == 100
    done = sonde_cli("ps", "--format", "json")
    assert done.returncode == 0 and len(json.loads(done.stdout)) == 100


def test_leftovers_of_a_cut_off_start_are_removed(root: Path) -> None:
    root.mkdir(mode=0o700)
    leftover = root / ".host-1-20200101T000000.000000.new"
    leftover.mkdir()
    os.utime(leftover, (0, 0))
    loop.Collector(str(root)).step(0.0)
    assert not leftover.exists()


def test_a_ring_of_an_earlier_version_is_left_as_it_is(start, root: Path) -> None:
    start(STREAM, "10", "60", "0", SONDE_COLLECTOR="off")
    session = only_session()
    watched = loop.Watched(session, KillCounts(Reader()))

    class Cpu:
        SCHEMA = "system"
        t_ns: i64
        cores: i64

    class Newer:
        SCHEMA = "system"
        t_ns: i64
        cores: i64
        more: i64

    Newer.__name__ = "Cpu"
    watched.write(Cpu, (1, 2))
    later = loop.Watched(session, KillCounts(Reader()))
    later.write(Newer, (3, 4, 5))
    later.write(SourceLog, (1, "cpu", "on", None))
    assert query(session, "SELECT t_ns, cores FROM system.cpu") == [{"t_ns": 1, "cores": 2}]
    assert query(session, "SELECT state FROM sonde.source WHERE source = 'cpu'") == [
        {"state": "on"}
    ]


@pytest.mark.skipif(os.getuid() != 0, reason="only root may make a pid namespace")
def test_pids_of_another_namespace_are_not_looked_up_here(start, root: Path) -> None:
    inner = """
import sonde, time
sonde.start(collector="off")
print("ready", flush=True)
time.sleep(600)
"""
    command = ["unshare", "-pf", "--kill-child", sys.executable, "-u", "-c", inner]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            session = only_session()
            assert session.pid == 1 and session.is_alive() and not session.shares_pids()
            watched = loop.Watched(session, KillCounts(Reader()))
            assert watched.host_pid is None
        finally:
            process.kill()
