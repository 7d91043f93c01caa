"""New rows of a table: each of them once, from the ring or, where that has lost them, the archive."""

from __future__ import annotations

import os

import pytest

import sonde
from sonde.collector.drain import Drain
from sonde.store.rows import open_tables
from sonde.store.tail import RingTail, read_since


class Tick:
    """A number."""

    n: sonde.i64


@pytest.fixture
def emit():
    emit = sonde.table(Tick, "job.tick")
    sonde.start(collector="off", ring_bytes="4KiB")
    return emit


def open_table():
    return open_tables(sonde.open(os.getpid()).sessions[0])["job.tick"]


def test_every_row_is_handed_out_once(emit) -> None:
    for n in range(3):
        emit(n)
    tail = RingTail(open_table().ring)
    assert tail.read_columns()[1] == [0, 1, 2]
    assert tail.read().rows == 0
    emit(3)
    assert tail.read_columns()[1] == [3]
    assert tail.next_ticket == 4


def test_rows_that_came_too_late_are_counted(emit) -> None:
    emit(0)
    tail = RingTail(open_table().ring)
    total = 3 * tail.ring.capacity
    for n in range(1, total):
        emit(n)
    batch = tail.read()
    assert batch.rows + batch.lost == total and batch.lost > 0


def test_arrow_rows_go_on_from_the_ticket_that_was_returned(emit) -> None:
    emit(1)
    rows, ticket = read_since(open_table(), 0)
    assert (rows["n"].to_pylist(), ticket) == ([1], 1)
    emit(2)
    rows, ticket = read_since(open_table(), ticket)
    assert (rows["n"].to_pylist(), ticket) == ([2], 2)


def test_rows_that_the_ring_has_lost_come_from_the_archive(emit) -> None:
    emit(0)
    table = open_table()
    half = table.ring.capacity // 2
    for n in range(1, half):
        emit(n)
    Drain(table.session, table.ring.path).run(0.0, 0.0, ended=True)
    total = half + 2 * table.ring.capacity
    for n in range(half, total):
        emit(n)
    numbers = read_since(open_table(), 0)[0]["n"].to_pylist()
    assert numbers[:half] == list(range(half)) and numbers[-1] == total - 1
    assert len(set(numbers)) == len(numbers)
