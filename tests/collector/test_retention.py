"""Retention: limits are kept, what is oldest goes first, and the newest recording stays."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

import sonde
from sonde.collector import loop, retention
from sonde.session import Session, captures, crash_file, list_sessions, snapshots
from sonde.session.ring import Ring
from sonde.store import archive
from sonde.store.rows import make_table

BRIEF = "import sonde, gc; sonde.start(collector='off'); gc.collect()"
LARGE = """
import random, sonde, sys, time
class Row:
    n: int
    x: float
emit = sonde.table(Row)
sonde.start(collector="off")
for n in range(20000): emit(n, random.random())
print("ready", flush=True)
if "stay" in sys.argv: time.sleep(600)
"""
PARTS = ("kept", "dropped", "unfinished", "overwritten", "corrupt", "expired")


def list_all() -> list[Session]:
    return list(list_sessions(os.environ["SONDE_DIR"]))


def limits(**changes: object) -> dict[str, object]:
    return {"retain.bytes": 2**30, "retain.age": 7 * 86400.0} | {
        f"retain.{name}": value for name, value in changes.items()
    }


def measure(root: Path) -> int:
    return sum(retention.measure_bytes(session.folder) for session in list_all())


def archive_in_parts(session: Session, parts: int) -> None:
    """Archive the rows of a large recording in files of the same size."""
    ring = Ring(session.path("job.row.ring"))
    step = ring.head // parts
    for first in range(0, ring.head, step):
        rows = make_table(session, ring.schema, ring.read(first, first + step))
        path = archive.write_segment(session, "job.row", rows, first, first + step, 0)
        os.utime(path, ns=(time.time_ns(), 10**18 + first))


def count_losses(session: Session) -> dict[str, int]:
    sql = "SELECT * FROM sonde.loss WHERE table_name = 'job.row'"
    (loss,) = sonde.open(session.folder).query(sql).to_pylist()
    assert sum(loss[part] for part in PARTS) == loss["written"] == 20000, loss
    return loss


@pytest.fixture(autouse=True)
def _all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seal everything that has ended in one round, however slow this machine is."""
    monkeypatch.setattr(loop, "SEAL_S", math.inf)


@pytest.fixture
def ended(run, root: Path) -> list[Session]:
    """Five ended, sealed sessions, oldest first."""
    for _ in range(5):
        run(BRIEF)
    loop.Collector(str(root)).step(0.0)
    return list_all()


@pytest.fixture
def large(run, root: Path) -> Session:
    """A sealed session that consists of ten segments, and little else."""
    run(LARGE)
    (session,) = list_all()
    archive_in_parts(session, 10)
    loop.Collector(str(root)).step(0.0)
    assert session.read_sealed()
    return session


def test_what_fits_is_kept(ended: list[Session], root: Path) -> None:
    assert retention.enforce_limits(str(root), limits()) == []


def test_old_sessions_go_by_age(ended: list[Session], root: Path) -> None:
    gone = retention.enforce_limits(str(root), limits(), time.time() + 8 * 86400)
    assert gone == [session.id for session in ended]
    assert list_all() == []


def test_the_oldest_go_first_when_there_is_too_much(ended: list[Session], root: Path) -> None:
    sizes = [retention.measure_bytes(session.folder) for session in ended]
    gone = retention.enforce_limits(str(root), limits(bytes=sum(sizes[2:]) + sizes[1] // 2))
    assert gone == [ended[0].id, ended[1].id]


def test_the_newest_recording_is_trimmed_and_never_removed(large: Session, root: Path) -> None:
    whole = measure(root)
    assert retention.enforce_limits(str(root), limits(bytes=whole // 2)) == []
    assert whole // 4 < measure(root) <= whole // 2
    segments = archive.list_segments(large, "job.row")
    assert segments[-1].last == 20000 and segments[0].first > 0
    assert count_losses(large)["expired"] == segments[0].first
    assert retention.enforce_limits(str(root), limits(bytes=0)) == []
    assert archive.list_segments(large, "job.row")[0].first == 18000


def test_a_large_recording_does_not_vanish_for_a_small_one(large: Session, run, root: Path) -> None:
    whole = measure(root)
    run(BRIEF)
    loop.Collector(str(root)).step(0.0)
    assert measure(root) > whole
    assert retention.enforce_limits(str(root), limits(bytes=whole)) == []
    assert measure(root) <= whole
    assert 10000 < count_losses(large)["kept"] < 20000


def test_snapshots_and_captures_count_and_go_after_the_rows(large: Session, root: Path) -> None:
    for folder, names in (
        (snapshots.FOLDER, ["000001-delta.prof", "000001-total.prof", "000002-delta.prof",
                            "000002-total.prof"]),
        (captures.FOLDER, ["capture-1.json.gz", "capture-2.json.gz"]),
    ):  # fmt: skip
        os.mkdir(large.path(folder))
        for n, name in enumerate(names):
            path = Path(large.path(folder, name))
            path.write_bytes(os.urandom(100_000))
            os.utime(path, ns=(0, n))
    retention.enforce_limits(str(root), limits(bytes=measure(root) - 1))
    assert count_losses(large)["expired"] == 4000  # a sixteenth more than has to go
    assert len(os.listdir(large.path(snapshots.FOLDER))) == 4
    retention.enforce_limits(str(root), limits(bytes=0))
    assert sorted(os.listdir(large.path(snapshots.FOLDER))) == [
        "000002-delta.prof",
        "000002-total.prof",
    ]
    assert os.listdir(large.path(captures.FOLDER)) == ["capture-2.json.gz"]


def test_the_rings_of_a_running_session_count(ended: list[Session], start, root: Path) -> None:
    before = measure(root)
    start(LARGE, "stay")
    assert measure(root) > before + 20000 * 16
    gone = retention.enforce_limits(str(root), limits(bytes=before))
    assert gone == [session.id for session in ended[:4]]


def test_a_running_session_is_never_removed_but_trimmed(start, root: Path) -> None:
    start(LARGE, "stay")
    (session,) = list_all()
    archive_in_parts(session, 10)
    assert retention.enforce_limits(str(root), limits(bytes=0), time.time() + 10**7) == []
    assert len(archive.list_segments(session, "job.row")) == 1
    assert count_losses(session)["expired"] == 18000


def test_limits_are_enforced_as_soon_as_much_has_been_archived(large: Session, root: Path) -> None:
    room = measure(root)
    one = retention.Retention(str(root), limits(bytes=room))
    one.run(0.0, 0)
    archive.write_segment(
        large, "job.row", archive.read_segment(archive.list_segments(large, "job.row")[0]),
        20000, 22000, 0,
    )  # fmt: skip
    one.run(1.0, room // 17)
    assert measure(root) > room
    one.run(2.0, room // 17)
    assert measure(root) <= room


def test_where_files_are_memory_a_share_of_it_is_the_limit(
    large: Session, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measure(root)
    monkeypatch.setattr(retention, "find_memory_limit", lambda _folder: 4 * whole)
    retention.Retention(str(root), limits()).run(0.0, 0)
    assert measure(root) <= whole // 2
    assert count_losses(large)["kept"] > 0


def leave_copies(session: Session, age_s: float) -> Path:
    path = Path(session.path(crash_file.NAME))
    path.write_bytes(b"secrets")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_copies_of_stacks_that_nobody_has_unwound_go_soon(ended: list[Session], root: Path) -> None:
    old, new = (leave_copies(ended[at], age_s) for at, age_s in ((0, 3600.0), (1, 60.0)))
    retention.Retention(str(root), limits()).run(0.0, 0)
    assert not old.exists() and new.exists()


def test_copies_stay_for_the_collector_of_their_machine_only(
    run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(BRIEF)
    left = leave_copies(list_all()[0], 3600.0)
    retention.Retention(str(root), limits()).run(0.0, 0)
    assert left.exists()
    here = os.uname()
    elsewhere = os.uname_result((here[0], "elsewhere", *here[2:]))
    monkeypatch.setattr(os, "uname", lambda: elsewhere)
    retention.Retention(str(root), limits()).run(0.0, 0)
    assert not left.exists()
