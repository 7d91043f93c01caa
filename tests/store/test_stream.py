"""Answers that come piece by piece: the same rows, the same rules, and an end at any time."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sonde.errors import QueryError
from sonde.store.recording import open_recording

MANY = "SELECT i FROM range(1000000) AS t(i)"


@pytest.fixture
def recording(run, root):
    run("import sonde; sonde.start(collector='off'); sonde.mark('here')")
    return open_recording("all")


def test_the_pieces_of_a_stream_are_the_rows_of_a_query(recording) -> None:
    pieces = list(recording.stream(MANY))
    assert len(pieces) > 1
    assert pa.Table.from_batches(pieces)["i"].to_pylist() == list(range(1000000))
    with recording.freeze("marker") as still:
        for asked in (recording, still):
            (names,) = [piece["name"].to_pylist() for piece in asked.stream("FROM event.marker")]
            assert names == ["here"]


def test_a_stream_may_name_tables_that_it_is_given(recording) -> None:
    given = {"wanted": pa.table({"name": ["here", "there"]})}
    sql = "SELECT name FROM wanted JOIN event.marker USING (name)"
    for _ in range(2):
        assert [p["name"].to_pylist() for p in recording.stream(sql, given=given)] == [["here"]]


def test_a_stream_only_reads(recording) -> None:
    for sql in ("CREATE TABLE t (i INT)", "FROM read_csv('/etc/passwd')", "SET threads = 1"):
        with pytest.raises(QueryError):
            list(recording.stream(sql))


def test_a_stream_that_fails_says_why(recording) -> None:
    with pytest.raises(QueryError, match=r"event\.marker"):
        list(recording.stream("FROM event.markers"))


def test_a_stream_can_be_left_at_any_time(recording) -> None:
    with recording.freeze() as still:
        pieces = still.stream("SELECT i FROM range(100000000) AS t(i)")
        assert next(pieces).num_rows
        pieces.close()
        assert still.query("SELECT 1 AS one")["one"].to_pylist() == [1]
