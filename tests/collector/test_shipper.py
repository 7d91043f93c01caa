"""Shipping: every row arrives once, whatever is killed or fails, and answers are the same there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import sonde
from conftest import find_processes, wait_for
from sonde.collector.shipment import Shipment
from sonde.collector.shipper import Shipper
from sonde.errors import ConfigError, NoSession, QueryError
from sonde.session import Session, list_sessions
from sonde.session.shipped import read_shipped
from sonde.settings import read_values
from sonde.store import archive
from sonde.store.place import FleetPlace
from sonde.store.recording import open_recording
from sonde.store.rows import open_tables

PROGRAM = """
import os, sys, time, sonde
class Row:
    n: int
    name: str
emit = sonde.table(Row)
sonde.start()
def work(n):
    with sonde.span("work"):
        emit(n, "even" if n % 2 == 0 else "odd")
        time.sleep(0.002)
for n in range(1000): work(n)
print("ready", flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
for n in range(1000, 2000): work(n)
"""
BRIEF = """
import sonde
class Row:
    n: int
emit = sonde.table(Row)
sonde.start(collector="off")
for n in range(3000): emit(n)
"""
SAME = (
    "SELECT name, COUNT(*), SUM(n) FROM job.row GROUP BY 1 ORDER BY 1",
    "SELECT thread, SUM(samples), SUM(wall_ns) FROM python.stack_sample GROUP BY 1 ORDER BY 1",
    "SELECT stack, func, lineno, samples FROM python.stack ORDER BY 1",
    "SELECT func, depth, COUNT(*) FROM python.frame GROUP BY ALL ORDER BY ALL",
    "SELECT kind, func, lineno, SUM(wall_ns) FROM python.thread_time GROUP BY ALL ORDER BY ALL",
    "SELECT thread, depth, func FROM python.backtrace ORDER BY ALL",
    "SELECT t_ns, cores FROM system.cpu ORDER BY ALL",
    "SELECT MAX(cores) FROM system.cpu WHERE ts >= (SELECT MIN(ts) FROM system.network)",
    "SELECT name, count, total_ns FROM event.summary ORDER BY 1",
    "SELECT state, exit_code, rank, job FROM sonde.session",
    "SELECT table_name, written, kept FROM sonde.loss ORDER BY 1",
    "SELECT name, value FROM python.environment ORDER BY 1",
    "SELECT source, used_ns, over_ns FROM sonde.cost ORDER BY 1",
)


def only_session() -> Session:
    (session,) = list_sessions(os.environ["SONDE_DIR"])
    return session


def _find_shippers(root: Path) -> list[int]:
    found = find_processes(str(root))
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found}
    return [pid for pid, line in words.items() if b"collector.shipper" in line]


def ask(target: Path | str, sql: str) -> list[dict[str, object]]:
    return open_recording(str(target)).query(sql).to_pylist()


def find_ship_state(session: Session) -> dict[str, object]:
    (row,) = ask(session.folder, "SELECT state, detail FROM sonde.source WHERE source = 'ship'")
    return row


def test_a_shared_place_has_every_row_once_and_answers_like_the_recording(
    start, root: Path, tmp_path: Path, sonde_cli
) -> None:
    place = tmp_path / "place"
    process = start(
        PROGRAM,
        str(tmp_path / "go"),
        SONDE_ARCHIVE_TO=str(place),
        SONDE_ARCHIVE_SHIP_EVERY="1s",
        SONDE_JOB="train",
    )
    # The rows of a job that runs are there, and a killed shipper costs none.
    wait_for(lambda: list(place.glob("job.row/*/*.parquet")))
    for pid in _find_shippers(root):
        os.kill(pid, signal.SIGKILL)
    # Whose rows they are may be shipped only by the next one.
    wait_for(lambda: list(place.glob("sonde.session/*/*.parquet")))
    wait_for(lambda: ask(place, "SELECT COUNT(*) AS n FROM job.row") == [{"n": 1000}])
    assert [row["state"] for row in ask(place, "FROM sonde.session")] == ["running"]
    (tmp_path / "go").touch()
    process.communicate(timeout=120)
    session = only_session()
    wait_for(lambda: (known := read_shipped(session)) is not None and known.whole)
    targets = (session.folder, str(place), f"{place}#train")
    here, *there = (open_recording(target) for target in targets)
    for sql in SAME:
        rows = here.query(sql).to_pylist()
        assert [one.query(sql).to_pylist() for one in there] == [rows, rows], sql
    (leaf,) = ask(
        place, "SELECT frames FROM python.stack_sample WHERE frames LIKE '%work (%' LIMIT 1"
    )
    assert str(leaf["frames"]).startswith("<module> (")
    # Files are complete alone, whatever other engine reads them.
    files = [path.name for path in (place / "job.row").rglob("*.parquet")]
    assert len(files) == 1 and ".live." not in files[0]
    _check_commands(place, sonde_cli)


def _check_commands(place: Path, sonde_cli) -> None:
    for words in (
        ("ps", f"{place}"), ("tree", f"{place}#train"), ("advise", f"{place}"),
        ("export", f"{place}", "--to", "collapsed", "-o", "-"), ("tables", f"{place}"),
        ("compare", f"{place}#train", f"{place}#train"), ("events", f"{place}"),
        ("top", f"{place}#train", "--idle", "--window", "start"),
        ("query", f"{place}", "SELECT COUNT(*) FROM job.row", "--memory", "512MiB"),
    ):  # fmt: skip
        done = sonde_cli(*words)
        assert done.returncode == 0 and done.stdout, (words, done.stderr)
    assert "no PyTorch step" in sonde_cli("modules", str(place)).stderr
    with pytest.raises(NoSession, match="did you mean train"):
        open_recording(f"{place}#tran")
    with pytest.raises(QueryError, match="no files"):
        ask(place, f"SELECT * FROM read_parquet('{place}/job.row/*/*.parquet')")
    assert "shared place" in sonde_cli("stacks", str(place)).stderr


def _make_segments(session: Session, step: int = 1000) -> None:
    from sonde.store.rows import make_table

    ring = open_tables(session)["job.row"].ring
    assert ring is not None
    for first in range(0, ring.head, step):
        rows = make_table(session, ring.schema, ring.read(first, first + step))
        archive.write_segment(session, "job.row", rows, first, first + step, 0)


def test_a_place_that_fails_is_told_and_gets_all_rows_later(run, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    run(BRIEF, SONDE_ARCHIVE_TO=str(blocked / "place"))
    session = only_session()
    shipper = Shipper(os.environ["SONDE_DIR"])
    shipper.step(0.0)
    state = find_ship_state(session)
    assert state["state"] == "failed" and "rows are kept here" in str(state["detail"])
    shipper.step(0.5)  # too early: nothing is tried again
    blocked.unlink()
    shipper.step(0.9)
    assert not blocked.exists()
    shipper.step(2.0)
    assert find_ship_state(session)["state"] == "on"
    assert ask(blocked / "place", "SELECT COUNT(*) AS n FROM job.row") == [{"n": 3000}]


def test_what_retention_takes_before_it_is_shipped_is_counted(run, tmp_path: Path) -> None:
    place = tmp_path / "place"
    run(BRIEF, SONDE_ARCHIVE_TO=str(place))
    session = only_session()
    _make_segments(session)
    archive.expire(session, "job.row", archive.list_segments(session, "job.row")[0])
    Shipper(os.environ["SONDE_DIR"]).step(0.0)
    sql = "SELECT expired, unshipped FROM sonde.loss WHERE table_name = 'job.row'"
    assert ask(session.folder, sql) == [{"expired": 1000, "unshipped": 1000}]
    assert ask(place, "SELECT MIN(n) AS low, COUNT(*) AS n FROM job.row") == [
        {"low": 1000, "n": 2000}
    ]


def test_a_segment_that_is_sent_again_replaces_itself(run, tmp_path: Path) -> None:
    place = tmp_path / "place"
    run(BRIEF, SONDE_ARCHIVE_TO=str(place))
    session = only_session()
    _make_segments(session)
    for _ in range(2):  # as after a kill between the file and the note of it
        Shipper(os.environ["SONDE_DIR"]).step(0.0)
        os.unlink(session.path("shipped.json"))
    assert ask(place, "SELECT COUNT(*) AS n, COUNT(DISTINCT n) AS d FROM job.row") == [
        {"n": 3000, "d": 3000}
    ]
    listing = FleetPlace(str(place)).list_files("job.row")
    assert [(file.first, file.last) for file in listing.files] == [
        (0, 1000), (1000, 2000), (2000, 3000),
    ]  # fmt: skip


def test_a_file_of_a_shipper_that_was_killed_before_it_noted_it_is_removed(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    run(BRIEF, SONDE_ARCHIVE_TO=str(place))
    session = only_session()
    write = FleetPlace.write

    def write_and_die(self: FleetPlace, path: str, data: bytes) -> None:
        write(self, path, data)
        if "job.row" in path:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FleetPlace, "write", write_and_die)
        Shipper(os.environ["SONDE_DIR"]).step(0.0)
    (lost,) = place.glob("job.row/*/*.live.parquet")
    known = read_shipped(session)
    assert known is not None and [Path(path) for path in known.covered or ()] == [lost]
    known.covered = {str(lost): 0}  # long ago
    known.write(session.path("shipped.json"))
    _make_segments(session)
    Shipper(os.environ["SONDE_DIR"]).step(2000.0)
    assert not lost.exists()
    assert ask(place, "SELECT COUNT(*) AS n, COUNT(DISTINCT n) AS d FROM job.row") == [
        {"n": 3000, "d": 3000}
    ]


def test_a_file_stays_a_while_after_its_successor_for_those_who_read_it(
    run, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    run(BRIEF, SONDE_ARCHIVE_TO=str(place))
    session, shipper = only_session(), Shipper(os.environ["SONDE_DIR"])

    def list_files() -> list[str]:
        return sorted(path.name for path in place.glob("sonde.session/*/*.parquet"))

    shipper.step(0.0)
    before = list_files()
    shipper.step(1000.0)
    assert len(before) == 1 and len(list_files()) == 2 and before[0] in list_files()
    assert ask(place, "SELECT COUNT(*) AS n FROM sonde.session") == [{"n": 1}]
    known = read_shipped(session)
    assert known is not None and known.covered
    known.covered = dict.fromkeys(known.covered, 0)  # long ago
    known.write(session.path("shipped.json"))
    Shipper(os.environ["SONDE_DIR"]).step(2000.0)
    assert len(list_files()) == 2 and before[0] not in list_files()


def test_a_new_phase_of_a_program_has_its_names_at_once(root: Path, tmp_path: Path) -> None:
    def train(until: float) -> None:
        while time.monotonic() < until:
            sum(range(1000))

    def evaluate(until: float) -> None:
        while time.monotonic() < until:
            sum(range(1000))

    def find_nameless() -> int:
        rows = ask(
            tmp_path / "place",
            "SELECT COUNT(*) FILTER (func IS NULL)::INT AS none, COUNT(*) AS n "
            "FROM python.stack_sample LEFT JOIN (FROM python.frame WHERE depth = 0) USING (stack)",
        )
        return 100 * rows[0]["none"] // rows[0]["n"]

    sonde.start(collector="off", stack_every="1ms")
    shipment = Shipment(only_session(), FleetPlace(str(tmp_path / "place")))
    train(time.monotonic() + 0.3)
    shipment.run(0.0, 100.0)
    assert find_nameless() <= 2
    evaluate(time.monotonic() + 0.6)
    shipment.run(1.0, 100.0)  # long before other views are due
    assert find_nameless() <= 2


@pytest.mark.parametrize("to", ["train", "s3://", "s3://key:secret@bucket/x", "ftp://host/x"])
def test_a_place_is_a_store_or_an_absolute_path_without_a_secret(to: str) -> None:
    with pytest.raises(ConfigError):
        read_values({"archive.to": to})
    assert read_values({"archive.to": "gs://anonymous@bucket"})  # holds no secret
    assert read_values({"archive.to": "s3://bucket/x/"}) == {"archive.to": "s3://bucket/x"}


def test_a_place_to_which_nothing_was_shipped_is_named() -> None:
    with pytest.raises(NoSession, match="nothing has been shipped"):
        sonde.open("file:///nowhere/at/all")
