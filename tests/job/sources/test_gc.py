"""Garbage collections, as the collector itself counts them."""

from __future__ import annotations

import gc

import sonde


def test_the_gc_source_records_what_the_collector_did() -> None:
    folder = sonde.start(collector="off")
    gc.collect()
    before = gc.get_stats()[2]["collections"]
    for _ in range(5):
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        gc.collect()
    # Now: reading imports Arrow, and enough objects with it for a collection of its own.
    collections = gc.get_stats()[2]["collections"] - before
    sonde.stop()
    rows = (
        sonde.open(folder)
        .query("SELECT * FROM python.gc_pause WHERE generation = 2 ORDER BY t_ns")
        .to_pylist()
    )
    assert len(rows) == 6 and collections == 5
    assert all(row["dur_ns"] > 0 for row in rows)
    assert [row["collected"] >= 1 for row in rows[1:]] == [True] * 5
