"""Merging the files of a shared place: readers see each row once, whatever is killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sonde.collector.shipper import Shipper
from sonde.session import list_sessions
from sonde.store import archive
from sonde.store.compaction import compact
from sonde.store.place import FleetPlace, PlaceError
from sonde.store.recording import open_recording
from sonde.store.rows import make_table, open_tables

PROGRAM = """
import sonde
class Row:
    n: int
class Own:
    session: int
emit, own = sonde.table(Row), sonde.table(Own)
sonde.start(collector="off")
for n in range(3000): emit(n); own(n)
"""
SQL = "SELECT session, COUNT(*) AS n, COUNT(DISTINCT n) AS d FROM job.row GROUP BY 1 ORDER BY 1"


def ship(root: str) -> None:
    """Send everything from the start, as after a kill of a shipper that could note nothing."""
    for session in list_sessions(root):
        if os.path.exists(session.path("shipped.json")):
            os.unlink(session.path("shipped.json"))
    Shipper(root).step(0.0)


@pytest.fixture
def place(run, root: Path, tmp_path: Path) -> Path:
    """A place with two sessions, each table in three files."""
    to = tmp_path / "place"
    for rank in "01":
        run(PROGRAM, SONDE_ARCHIVE_TO=str(to), SONDE_JOB="train", RANK=rank)
    for session in list_sessions(str(root)):
        for name in ("job.row", "job.own"):
            ring = open_tables(session)[name].ring
            assert ring is not None
            for first in range(0, 3000, 1000):
                rows = make_table(session, ring.schema, ring.read(first, first + 1000))
                archive.write_segment(session, name, rows, first, first + 1000, 0)
    ship(str(root))
    return to


def count_files(place: Path, table: str) -> int:
    return len(list((place / table).rglob("*.parquet")))


def test_files_become_one_and_answers_stay(place: Path, root: Path) -> None:
    before = open_recording(str(place)).query(SQL).to_pylist()
    assert [(row["n"], row["d"]) for row in before] == [(3000, 3000)] * 2
    asked_before = open_recording(str(place))  # it has listed nothing of job.row yet
    asked_before.query(SQL)
    done = {one.table: one for one in compact(FleetPlace(str(place)))}
    assert (done["job.row"].before, done["job.row"].after, done["job.row"].rows) == (6, 1, 6000)
    assert count_files(place, "job.row") == 1
    assert asked_before.query(SQL).to_pylist() == before  # its files are gone: it lists again
    assert open_recording(str(place)).query(SQL).to_pylist() == before
    one = open_recording(f"{place}#train/1").query(SQL).to_pylist()
    assert one == [before[1]]
    # What is sent once more does not count twice, and is gone after the next time.
    ship(str(root))
    assert count_files(place, "job.row") > 1
    assert open_recording(str(place)).query(SQL).to_pylist() == before
    assert not [one for one in compact(FleetPlace(str(place))) if one.table == "job.row"]
    assert count_files(place, "job.row") == 1


def test_a_table_with_a_column_session_of_its_own_stays_as_it_is(place: Path) -> None:
    list(compact(FleetPlace(str(place))))
    assert count_files(place, "job.own") == 6
    sql = "SELECT COUNT(*) AS n, MAX(session) AS top FROM job.own"
    assert open_recording(str(place)).query(sql).to_pylist() == [{"n": 6000, "top": 2999}]


@pytest.mark.parametrize("step", ["write", "remove"])
def test_a_merge_that_is_cut_short_shows_no_row_twice(
    place: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_recording(str(place)).query(SQL).to_pylist()
    whole = getattr(FleetPlace, step)

    def fail(self: FleetPlace, path: str, *data: bytes) -> None:
        if step == "write" and "_merged-" not in path:
            whole(self, path, *data)
            return
        raise PlaceError("cut short")

    with monkeypatch.context() as patched, pytest.raises(PlaceError):
        patched.setattr(FleetPlace, step, fail)
        list(compact(FleetPlace(str(place))))
    assert open_recording(str(place)).query(SQL).to_pylist() == before
    for left in place.glob("_compaction-*"):  # of the one that was cut short
        left.unlink()
    list(compact(FleetPlace(str(place))))
    assert open_recording(str(place)).query(SQL).to_pylist() == before


def test_of_two_at_once_the_second_is_refused_and_no_row_is_seen_twice(
    place: Path, root: Path
) -> None:
    before = open_recording(str(place)).query(SQL).to_pylist()
    first = compact(FleetPlace(str(place)))
    next(first)  # in the middle of its work
    with pytest.raises(PlaceError, match="another `sonde compact` works on"):
        list(compact(FleetPlace(str(place))))
    list(first)
    assert open_recording(str(place)).query(SQL).to_pylist() == before
    # One that was killed long ago is in nobody's way.
    left = place / "_compaction-1-1.json"
    left.write_text("{}")
    os.utime(left, (0, 0))
    list(compact(FleetPlace(str(place))))
    assert open_recording(str(place)).query(SQL).to_pylist() == before
    assert [path.name for path in place.glob("_compaction-*")] == [left.name]
