"""What `dumps` prints, and the small decisions of sonde.profiler, without a program around them."""

from __future__ import annotations

import csv
import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from sonde import _core, profiler
from sonde.export import profiler_writer
from sonde.job.mxnet import table
from sonde.job.mxnet.memory import write_memory
from sonde.job.mxnet.settings import MxnetSettings
from sonde.job.mxnet.state import state
from sonde.job.recorder import recorder
from sonde.session.profiler_line import name_file

HOUR_NS = 3600 * 10**9


def region(kind: str, domain: str | None, name: str, *durations: int) -> tuple[object, ...]:
    """A row of _core.events_summary()."""
    numbers = len(durations), sum(durations), min(durations), max(durations)
    return (kind, domain, name, *numbers, None, None, None, None, 0, 0)


def counter(domain: str, name: str, low: float, high: float, mean: float) -> tuple[object, ...]:
    return ("counter", domain, name, 3, None, None, None, low, high, mean, high, 0, 0)


def test_the_table_is_laid_out_as_the_originals() -> None:
    rows = [region("task", "D", "load", 1_500_000, 500_000)]
    memory = {"cpu/0": {"Count": 2, "Min": 1000.0, "Max": 3000.0, "Avg": 2000.0}}
    sums = table.order(table.collect(rows, memory), "total", False)
    assert (
        table.write_table(sums)
        == """
Profile Statistics:
\tNote the difference in units for different entries.
D
=================
Name                          Total Count        Time (ms)    Min Time (ms)    Max Time (ms)    Avg Time (ms)
----                          -----------        ---------    -------------    -------------    -------------
load                                    2           2.0000           0.5000           1.5000           1.0000

Device Storage
=================
Name                          Total Count    Min Use  (kB)    Max Use  (kB)    Avg Use  (kB)
----                          -----------    -------------    -------------    -------------
Memory: cpu/0                           2        1000.0000        3000.0000        2000.0000

"""
    )


def test_a_name_is_one_line_of_the_table_and_itself_in_json() -> None:
    name = 'a "b"\n\0' + "x" * 100
    sums = table.collect([region("event", None, name, 5)], {})
    lines = [line for line in table.write_table(sums).splitlines() if line.startswith('a "b"')]
    assert len(lines) == 1 and lines[0].startswith(r'a "b"\n\x00xx')
    assert list(json.loads(table.write_json(sums))["Time"]["event"]) == [name]


def test_hours_have_their_true_least_and_every_digit() -> None:
    sums = table.collect([region("frame", "D", "f", 2 * HOUR_NS + 1, 3 * HOUR_NS)], {})
    found = json.loads(table.write_json(sums))["Time"]["D,frame"]["f"]
    assert found["Min"] == 7_200_000.000001
    assert found == {"Count": 2, "Total": 18_000_000.000001, "Min": 7_200_000.000001,
                     "Max": 10_800_000.0, "Avg": 9_000_000.0000005}  # fmt: skip


def test_counters_are_no_times_and_have_a_part_of_their_own() -> None:
    sums = table.collect([counter("D", "c", -5.0, 2.0**63, 3.5)], {})
    found = json.loads(table.write_json(sums))
    assert found["Time"] == {}
    assert found["Counter"]["D"]["c"] == {
        "Count": 3, "Min": -5, "Max": 2**63, "Avg": 3.5, "Last": 2**63
    }  # fmt: skip
    assert "D,counter" in table.write_table(sums).splitlines()


def test_what_is_no_number_is_null_in_json() -> None:
    sums = table.collect([counter("D", "c", float("-inf"), float("inf"), float("nan"))], {})
    found = json.loads(table.write_json(sums), parse_constant=pytest.fail)["Counter"]["D"]["c"]
    assert (found["Min"], found["Max"], found["Avg"]) == (None, None, None)


def test_what_has_no_total_is_sorted_by_its_average() -> None:
    rows = [counter("D", "b", 0.0, 9.0, 2.0), counter("D", "a", 0.0, 9.0, 7.0)]
    sums = table.order(table.collect(rows, {}), "total", False)
    assert list(sums["Counter"]["D"]) == ["a", "b"]


def test_the_average_of_a_counter_is_weighed_by_time(tmp_path: Path) -> None:
    profiler.set_config(filename=str(tmp_path / "x.json"), aggregate_stats=True,
                        profile_memory=False, continuous_dump=False)  # fmt: skip
    try:
        profiler.set_state("run")
        clock = [_core.clock_ns()]
        one = profiler.Domain("D").new_counter("c", 0)
        clock.append(_core.clock_ns())
        sum(range(100_000))
        clock.append(_core.clock_ns())
        one.set_value(10)
        clock.append(_core.clock_ns())
        sum(range(300_000))
        clock.append(_core.clock_ns())
        found = json.loads(profiler.dumps(format="json"))["Counter"]["D"]["c"]["Avg"]
        clock.append(_core.clock_ns())
        a, b, c, d, e, f = clock
        # Each step happened somewhere between two looks at the clock.
        assert 10 * (e - d) / (e - a) <= found <= 10 * (f - c) / (f - b)
    finally:
        profiler.set_state("stop")
        state.profile = None
        recorder.stop()
        _core.events_gate(True)


@pytest.mark.parametrize("path, mark, before, name", [
    ("/a/profile.json", "-pid_7", False, "/a/profile-pid_7.json"),
    ("/a/profile.json.gz", "-pid_7", False, "/a/profile-pid_7.json.gz"),
    ("/a/profile", "-pid_7", False, "/a/profile-pid_7"),
    ("/a/.hidden.json", "-pid_7", False, "/a/.hidden.json-pid_7"),
    ("/a/profile.json", "rank3_", True, "/a/rank3_profile.json"),
])  # fmt: skip
def test_a_second_process_has_a_file_beside_it(
    path: str, mark: str, before: bool, name: str
) -> None:
    assert name_file(path, mark, before=before) == name


@pytest.mark.parametrize("rank, given, name", [
    ("0", "p.json", "p.json"), ("3", "p.json", "rank3_p.json"), ("3", "p_3.json", "p_3.json"),
    ("3", "p_13.json", "rank3_p_13.json"),
])  # fmt: skip
def test_ranks_do_not_write_one_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: str, given: str, name: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "16")
    state.configure(MxnetSettings({"filename": tmp_path / given}))
    assert state._name_file() == str(tmp_path / name)
    _core.events_gate(True)


def test_very_many_windows_become_few_and_lose_no_time() -> None:
    job = profiler_writer.ProfileFile.__new__(profiler_writer.ProfileFile)
    job.session = type("Fake", (), {"wall_offset_ns": 0})()  # type: ignore[assignment]
    job.windows = []
    for at in range(5000):
        job.windows += [at * 1000, at * 1000 + 900 - at % 7]
    found = job._list_windows()
    assert len(found) <= profiler_writer._MOST_ASKED
    assert found[0].since_ns == -1 and found[-1].until_ns == job.windows[-1]
    assert all(one.until_ns < after.since_ns for one, after in pairwise(found))
    job.windows = [5, 10, 20, 30]
    assert [tuple(one) for one in job._list_windows()] == [(4, 10), (19, 30)]


def test_gpu_memory_is_a_file_with_the_originals_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As torch.cuda.memory_snapshot() has it.
    used, free = {"state": "active_allocated"}, {"state": "inactive"}
    snapshot = [
        {"device": 1, "total_size": 2048, "segment_type": "small", "blocks": [
            {**used, "size": 1024, "requested_size": 1000}, {**free, "size": 1024}]},
        {"device": 0, "total_size": 4096, "segment_type": "large",
         "blocks": [{**used, "size": 4096, "requested_size": 4000}]},
    ]  # fmt: skip
    cuda = SimpleNamespace(is_initialized=lambda: True, memory_snapshot=lambda: snapshot)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    path = write_memory(str(tmp_path / "gpu"), ["memory"])
    assert path == str(tmp_path / f"gpu-pid_{os.getpid()}.csv")
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["Attribute Name", "Requested Size", "Device", "Actual Size", "Reuse?"]
    assert [list(row.values()) for row in rows] == [
        ["small:", "1000", "1", "1024", "1"], ["large:", "4000", "0", "4096", "0"]
    ]  # fmt: skip


def test_without_a_gpu_there_is_no_such_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert write_memory(str(tmp_path / "gpu"), ["memory"]) is None
    assert os.listdir(tmp_path) == []
