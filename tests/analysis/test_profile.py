"""Stacks as values: whose they are, what they weigh, and when they were seen."""

from __future__ import annotations

import json

import pytest

from sonde import Error
from sonde.analysis.profile import Place, Profile, Selection, list_parts
from sonde.analysis.window import Window, find_window, parse_moment
from sonde.errors import ConfigError
from support.handmade_stacks import MS, START_NS, FakeRecording, FakeSession, record_training

SECOND = 10**9


def names(stack) -> str:
    return "|".join(frame.func for frame in stack.frames)


# ---- windows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("10s", 90 * SECOND),
        ("10", 90 * SECOND),
        ("1.5 m", 10 * SECOND),
        ("250ms", 100 * SECOND - 250 * MS),
        ("0s", 100 * SECOND),
        ("+30s", 30 * SECOND),
        ("+0.5s", SECOND // 2),
        ("1970-01-01T00:00:07", 7 * SECOND),
        ("1970-01-01 00:00:07.000001Z", 7 * SECOND + 1000),
        ("1970-01-01T01:00:07+01:00", 7 * SECOND),
        ("1970-01-02", 86400 * SECOND),
    ],
)
def test_a_moment_is_before_the_end_after_the_start_or_a_date(text: str, ns: int) -> None:
    assert parse_moment(text, 0, 100 * SECOND) == ns


@pytest.mark.parametrize(
    "text", ["", "soon", "-5s", "+-5s", "+", "10 parsecs", "nan", "inf", "1e999s"]
)
def test_a_moment_that_is_none_is_refused_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time; write 10s"):
        parse_moment(text, 0, 100 * SECOND)


def test_without_words_a_window_is_the_whole_recording() -> None:
    recording = FakeRecording().see("a", 10).see("b", 70)
    since, until = find_window(recording, None, None)
    assert since < START_NS and until == START_NS + 70 * MS + 999  # ts is in microseconds


def test_the_end_of_a_running_process_is_now() -> None:
    recording = FakeRecording(FakeSession(state="running")).see("a", 10)
    now = START_NS + 60 * SECOND
    assert find_window(recording, "10s", None, now) == Window(START_NS + 50 * SECOND, now)


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="--since 1s is not before --until 5s"):
        find_window(FakeRecording().see("a", 9000), "1s", "5s")


# ---- stacks -------------------------------------------------------------------------------------


def test_equal_stacks_of_a_thread_are_summed_and_root_comes_first() -> None:
    recording = FakeRecording().see("a|b", 10, cpu=4, gil=False).see("a|b", 20).see("a", 30)
    found = {names(stack): stack for stack in recording.profile().stacks}
    assert found["a|b"].ns == (20 * MS, 14 * MS, 10 * MS) and found["a|b"].samples == (2, 2, 1)
    assert found["a"].ns == (10 * MS, 10 * MS, 10 * MS)


def test_sums_of_weights_are_the_sums_of_the_table() -> None:
    recording = record_training()
    sums = recording.query(
        "SELECT SUM(wall_ns)::BIGINT AS wall, SUM(cpu_ns)::BIGINT AS cpu, "
        "SUM(wall_ns) FILTER (gil)::BIGINT AS gil, SUM(samples)::BIGINT AS n "
        "FROM python.stack_sample"
    ).to_pylist()[0]
    profile = recording.profile()
    for rows in (profile.stacks, list(profile.iter_samples())):
        totals = [sum(column) for column in zip(*(row.ns for row in rows), strict=True)]
        assert totals == [sums["wall"], sums["cpu"], sums["gil"]]
    assert sum(stack.samples[0] for stack in profile.stacks) == sums["n"]
    assert profile.period_ns == 10 * MS


def test_processes_that_share_a_pid_are_told_apart() -> None:
    processes = {stack.thread.process for stack in record_training().profile().stacks}
    assert sorted(process.label for process in processes) == [
        "train.py (rank 0, alpha pid 100)",
        "train.py (rank 1, beta pid 100)",
    ]


def test_two_sessions_of_one_process_are_told_apart_by_time() -> None:
    later = FakeSession(start_wall_ns=START_NS + SECOND, monotonic_ns=7 * SECOND)
    recording = FakeRecording(FakeSession(), later)
    recording.name(100, "first").name(100, "second", session=1)
    recording.see("a", 10).see("b", 10, session=1)
    seen = [(sample.thread.name, sample.start_ns) for sample in recording.profile().iter_samples()]
    assert seen == [("first", START_NS), ("second", START_NS + SECOND)]


def test_a_thread_has_its_newest_name() -> None:
    recording = FakeRecording().name(100, "old", at_ms=1).name(100, "new", at_ms=2).see("a", 10)
    (stack,) = recording.profile().stacks
    assert stack.thread.label == "new (100)"


@pytest.mark.parametrize("word", ["loader;0", "101", "load*"])
def test_threads_are_chosen_by_name_number_or_pattern(word: str) -> None:
    found = record_training().profile(threads=[word]).stacks
    assert {names(stack) for stack in found} == {"run|wait"}


def test_a_thread_name_that_looks_like_a_pattern_is_found_as_it_is() -> None:
    recording = FakeRecording().name(7, "pool[0]'s").see("a", 10, thread=7).see("b", 10)
    (stack,) = recording.profile(threads=["pool[0]'s"]).stacks
    assert names(stack) == "a"


def test_windows_that_touch_share_no_sample() -> None:
    recording = FakeRecording().see("a", 10).see("b", 20).see("c", 30)
    found = [
        [names(stack) for stack in recording.profile(since=since, until=until).stacks]
        for since, until in (("+0s", "+0.02s"), ("+0.02s", None))
    ]
    assert [sorted(part) for part in found] == [["a", "b"], ["c"]]


def test_samples_come_in_the_order_of_time() -> None:
    recording = FakeRecording().see("b", 30).see("a", 20).see("c", 10)
    seen = [(names(sample), sample.start_ns) for sample in recording.profile().iter_samples()]
    assert seen == [("c", START_NS), ("a", START_NS + 10 * MS), ("b", START_NS + 20 * MS)]
    assert recording.profile().span_ns == (START_NS, START_NS + 30 * MS)


def test_recursion_keeps_every_frame() -> None:
    frame = ("fib", "f.py", 2, 1)
    (stack,) = FakeRecording().see([frame] * 5, 10).profile().stacks
    assert len(stack.frames) == 5


def test_time_whose_frames_were_not_kept_is_still_there() -> None:
    recording = FakeRecording().see("a", 10)
    recording.frames.clear()
    (stack,) = recording.profile().stacks
    assert names(stack) == "<lost>" and stack.ns[0] == 10 * MS


def test_a_place_is_a_function_or_a_line_of_it() -> None:
    frames = [[("f", "f.py", line, 1)] for line in (3, 4)]
    recording = FakeRecording().see(frames[0], 10).see(frames[1], 20)
    for lines, expected in (
        (False, {Place("f", "f.py", 1)}),
        (True, {Place("f", "f.py", 3), Place("f", "f.py", 4)}),
    ):
        profile = recording.profile(lines=lines)
        assert {profile.place(stack.frames[0]) for stack in profile.stacks} == expected


def test_nothing_sampled_says_why() -> None:
    empty = FakeRecording(FakeSession(state="running"))
    with pytest.raises(Error, match="no stack was sampled here"):
        _ = empty.profile().stacks
    recording = FakeRecording().name(100, "MainThread").see("a", 10).see("b", 5000)
    with pytest.raises(Error, match="threads here: MainThread"):
        _ = recording.profile(threads=["nobody"]).stacks
    with pytest.raises(Error, match="widen --since"):
        _ = recording.profile(since="+1s", until="+2s").stacks
    with pytest.raises(Error, match="no cpu time was sampled"):
        _ = FakeRecording().see("a", 10, cpu=0).profile(weight="cpu").weighed


# ---- threads without work -----------------------------------------------------------------------


def test_threads_without_work_are_left_out_if_asked() -> None:
    wait = ("Condition.wait", "/opt/lib/python3.12/threading.py", 355, 350)
    main = ("main", "/job/app.py", 3, 1)
    recording = (
        FakeRecording()
        .see([main], 10)
        .see([main, wait], 40, wall=30, cpu=0, gil=False)
        .see([wait], 100, wall=100, cpu=0, gil=False, thread=101)
        .see([wait], 105, wall=5, cpu=5, thread=101)  # it did something
    )
    window = find_window(recording, None, None)
    profile = Profile(recording, Selection(window, idle=False))
    assert [(names(stack), stack.ns[0] // MS) for stack in profile.stacks] == [
        ("main", 10), ("main|Condition.wait", 30), ("Condition.wait", 5),
    ]  # fmt: skip
    assert [(names(stack), stack.ns[0] // MS) for stack in profile.rest] == [
        ("Condition.wait", 100)
    ]
    assert sum(stack.ns[0] for stack in Profile(recording, Selection(window)).stacks) == 145 * MS


# ---- large recordings ---------------------------------------------------------------------------


def test_the_engine_holds_processes_in_memory_and_not_the_samples() -> None:
    """It takes a recorded table for a single row, and holds the smaller side of a join."""
    import duckdb
    import pyarrow as pa

    rows = pa.table({"host": ["vm"] * 100, "pid": [1] * 100})
    connection = duckdb.connect()
    connection.from_arrow(rows.to_reader()).create_view("sample")
    parts = ", ".join(list_parts(FakeRecording(*(FakeSession(pid=pid) for pid in range(8)))))
    [[_, plan]] = connection.execute(
        f"EXPLAIN (FORMAT json) WITH process AS (SELECT UNNEST([{parts}], recursive := true)) "
        "SELECT COUNT(*) FROM sample JOIN process USING (host, pid)"
    ).fetchall()
    [join] = find_joins(json.loads(plan))
    probed, held = (json.dumps(side).upper() for side in join["children"])
    assert "ARROW_SCAN" in probed and "ARROW_SCAN" not in held


def find_joins(nodes: list) -> list:
    found = [node for node in nodes if "JOIN" in node["name"].upper()]
    return found or [join for node in nodes for join in find_joins(node["children"])]
