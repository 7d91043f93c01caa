"""Databases that are kept between queries: nothing of one query reaches the next."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import duckdb
import pytest

import sonde
from sonde.errors import QueryError
from sonde.session import Session
from sonde.store.combined import create_view
from sonde.store.pool import EnginePool, PooledRecording
from sonde.store.recording import open_recording

MEMORY = "256MiB"
PROGRAM = """
import sys, sonde
class Thing:
    n: sonde.i64
sonde.start(collector="off")
own = sonde.table(Thing, f"job.{sys.argv[1]}")
for n in range(int(sys.argv[2])):
    own(n)
    sonde.mark(sys.argv[1])
"""
MARKS = "SELECT name, COUNT(*) AS n FROM event.marker GROUP BY name"


@pytest.fixture
def pool() -> Iterator[EnginePool]:
    found = EnginePool(1)
    yield found
    found.close()


def record(name: str, rows: int) -> list[Session]:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, name, str(rows)]) as process:
        assert process.wait() == 0
    return open_recording(process.pid).sessions


def ask(pool: EnginePool, sessions: list[Session], sql: str) -> list[tuple[object, ...]]:
    rows = PooledRecording(sessions, pool).query(sql, memory=MEMORY).to_pylist()
    return [tuple(row.values()) for row in rows]


def test_a_kept_database_is_lent_again_and_stays_locked(pool: EnginePool) -> None:
    with pool.lend(MEMORY) as first:
        pass
    with pool.lend(MEMORY) as second:
        assert second is first
        with pytest.raises(duckdb.InvalidInputException, match="locked"):
            second.connection.execute("SET enable_external_access = true")
        with pool.lend(MEMORY) as third, pool.lend("300MiB") as other:
            assert third is not first and other is not first


def test_a_database_whose_query_failed_is_not_kept(pool: EnginePool) -> None:
    with pytest.raises(ZeroDivisionError), pool.lend(MEMORY) as first:
        raise ZeroDivisionError
    with pool.lend(MEMORY) as second:
        assert second is not first
    with pytest.raises(duckdb.ConnectionException):
        first.connection.execute("SELECT 1")


def test_a_kept_view_has_the_rows_of_each_query_and_none_of_the_one_before(
    pool: EnginePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def note(*words: object) -> None:
        made.append(str(words[1]))
        create_view(*words)  # type: ignore[arg-type]

    monkeypatch.setattr("sonde.store.pool.create_view", note)
    one, other = record("one", 3), record("other", 5)
    assert ask(pool, one, MARKS) == [("one", 3)]
    assert ask(pool, other, MARKS) == [("other", 5)]
    assert sorted(ask(pool, one + other, MARKS)) == [("one", 3), ("other", 5)]
    assert made == ["event.marker"]  # by the first of them alone


def test_new_rows_are_seen_through_a_kept_view(pool: EnginePool) -> None:
    sonde.start(collector="off")
    mine = sonde.open(os.getpid()).sessions
    for n in range(1, 4):
        sonde.mark("again")
        assert ask(pool, mine, MARKS) == [("again", n)]


def test_tables_of_a_program_are_not_there_for_the_next_question(pool: EnginePool) -> None:
    one, other = record("one", 3), record("other", 5)
    assert ask(pool, one, "SELECT SUM(n) FROM job.one") == [(3,)]
    with pytest.raises(QueryError, match="does not exist"):
        ask(pool, other, "SELECT SUM(n) FROM job.one")
    assert ask(pool, one, "SELECT SUM(n) FROM job.one") == [(3,)]
    listed = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'job'"
    assert ask(pool, other, listed) == [("other",)]


def test_a_kept_view_that_a_query_names_in_pieces_is_read_as_well(pool: EnginePool) -> None:
    one, other = record("one", 3), record("other", 5)
    assert ask(pool, one, MARKS) == [("one", 3)]
    sql = "SELECT COUNT(*) FROM query_table('event.' || 'mar' || 'ker')"
    assert ask(pool, other, sql) == [(5,)]
