"""sonde.cost: what sources say that they have used, added up."""

from __future__ import annotations

import pytest

import sonde
from support.handmade_machine import NOTHING, record

MS = 10**6


@pytest.mark.parametrize(
    ("counts", "used_ms"),
    [([10, 30, 60], 60), ([10, 30, 5, 15], 45)],
    ids=["one count", "switched off and on again"],
)
def test_what_sources_count_is_added_up(counts: list[int], used_ms: int) -> None:
    def count(passed_s: float) -> int:
        return counts[round(passed_s / 10) - 1] * MS

    folder = record(
        10 * len(counts),
        10,
        **NOTHING,
        heap_sampling=lambda passed_s: {"own_ns": count(passed_s)},
        sampling=lambda passed_s: {"cpu_ns": 2 * count(passed_s)},
    )
    heap, stack = sonde.open(folder).query("FROM sonde.cost ORDER BY source").to_pylist()
    assert (heap["source"], stack["source"]) == ("heap", "stack")
    assert (heap["used_ns"], stack["used_ns"]) == (used_ms * MS, 2 * used_ms * MS)
    # The first count is half a period after the start.
    assert heap["over_ns"] == stack["over_ns"] == (10 * len(counts) - 5) * 1000 * MS
    assert heap["used_pct"] == pytest.approx(100 * heap["used_ns"] / heap["over_ns"])
    assert heap["runs_in"] == "the program's threads"


def test_a_recording_without_counts_has_no_costs() -> None:
    assert sonde.open(record(1, **NOTHING)).query("FROM sonde.cost").num_rows == 0
