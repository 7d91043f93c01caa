"""Chrome trace events: slices that nest, add up, and open in the importer they are for."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from sonde.analysis.profile import Profile
from sonde.analysis.sample_slices import iter_slices
from sonde.export.formats.chrome import _MICROS, _micros
from support.handmade_stacks import (
    HOSTILE,
    MS,
    START_NS,
    WALL,
    FakeRecording,
    export,
    record_training,
    write,
)
from support.trace_viewer import view


def read_slices(profile: Profile) -> list[tuple[str, float, float]]:
    events = json.loads(export("chrome", profile))["traceEvents"]
    return [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]


def test_a_slice_lasts_while_its_frame_stays_at_its_depth() -> None:
    recording = FakeRecording().see("a|b|c", 10).see("a|b|d", 20).see("a|b|d", 30).see("a|e", 40)
    assert read_slices(recording.profile()) == [
        ("a", 0, 40000), ("b", 0, 30000), ("c", 0, 10000), ("d", 10000, 20000), ("e", 30000, 10000),
    ]  # fmt: skip


def test_a_caller_that_changes_ends_what_it_called() -> None:
    recording = FakeRecording().see("a|b|c", 10).see("a|x|c", 20)
    assert [piece for piece in read_slices(recording.profile()) if piece[0] == "c"] == [
        ("c", 0, 10000), ("c", 10000, 10000),
    ]  # fmt: skip


def test_a_pause_between_samples_ends_every_slice() -> None:
    recording = FakeRecording().see("a", 10).see("a", 20).see("a", 1000)
    assert read_slices(recording.profile()) == [("a", 0, 20000), ("a", 990000, 10000)]


def test_cpu_time_that_is_settled_at_the_end_of_a_thread_takes_no_time_away() -> None:
    # Both rows have the time of the last sample, so either may come first.
    recording = FakeRecording().see("a|b", 10).see("a|b", 1000, wall=0, cpu=1, samples=0)
    recording.see("a|b", 1000, wall=990, cpu=0, samples=99)
    assert read_slices(recording.profile()) == [("a", 0, 1000000), ("b", 0, 1000000)]


def test_slices_are_exact_to_the_nanosecond() -> None:
    recording = FakeRecording().see("a", 10, wall=1.000001).see("b", 12.345678, wall=2.345678)
    text = export("chrome", recording.profile()).decode()
    assert '"ts":0.000,"dur":1000.001,' in text and '"ts":1000.001,"dur":2345.678,' in text


@pytest.mark.parametrize("ns", [-171_088_074, -20_221_809, -1000, -999, -74, -1, 0, 5, 1_234_567])
def test_times_before_the_first_moment_are_numbers_in_both_ways_of_writing(ns: int) -> None:
    asked = f"SELECT concat({_MICROS.format(f'({ns})::BIGINT')})"
    ((text,),) = duckdb.sql(asked).fetchall()
    assert text == _micros(ns) and json.loads(text) * 1000 == pytest.approx(ns, abs=0.01)


def test_slices_nest_and_the_outermost_add_up_to_the_time_sampled() -> None:
    profile = record_training().profile()
    events = json.loads(export("chrome", profile))["traceEvents"]
    total, waiting = 0.0, {}
    for event in (event for event in events if event["ph"] == "X"):
        pile = waiting.setdefault((event["pid"], event["tid"]), [])
        while pile and pile[-1] <= event["ts"]:
            pile.pop()
        assert not pile or event["ts"] + event["dur"] <= pile[-1]
        total += 0 if pile else event["dur"]
        pile.append(event["ts"] + event["dur"])
    assert total * 1000 == WALL


def test_processes_and_threads_have_their_names() -> None:
    events = json.loads(export("chrome", record_training().profile()))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names.values()) == ["MainThread", "MainThread", "loader;0", "loader;0"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(processes.values()) == [
        "train.py (rank 0, alpha pid 100)", "train.py (rank 1, beta pid 100)",
    ]  # fmt: skip


def test_overlapping_samples_do_not_make_overlapping_slices() -> None:
    recording = FakeRecording().see("a", 10).see("b", 15).see("b", 25)
    slices = list(iter_slices(recording.profile(), recording.profile().iter_samples()))
    assert [(s.start_ns - START_NS, s.end_ns - START_NS) for s in slices] == [
        (0, 10 * MS), (10 * MS, 25 * MS),
    ]  # fmt: skip


def test_chromes_own_importer_reads_it(tmp_path: Path) -> None:
    (said,) = view(write("chrome", record_training().profile(), tmp_path))
    assert said["warnings"] == []
    titles = [one["title"] for one in said["slices"]]
    assert titles.count("matmul") == 4 and HOSTILE in titles
    assert ("matmul", 0, 20) in [(one["title"], one["start"], one["dur"]) for one in said["slices"]]


def test_the_ids_of_arrows_are_numbers_that_both_ends_share() -> None:
    recording = FakeRecording()
    recording.region("submit", 0, 5, 1, thread=100)
    recording.region("work", 20, 5, 2, parent=1, thread=101)
    for part, row in enumerate((dict(thread=100), dict(thread=101))):
        recording.row("python.collective", 40 + part, op="all_reduce", seq=7, group_name="0",
                      dur_ns=MS, **row)  # fmt: skip
    events = json.loads(export("chrome", recording.profile()))["traceEvents"]
    arrows = [event for event in events if event["ph"] in "stf"]
    assert arrows and all(0 < event["id"] < 2**53 for event in arrows)
    for event in arrows:
        ends = {other["ph"] for other in arrows if other["id"] == event["id"]}
        assert {"s", "f"} <= ends, event
