"""Where rules that read samples look in a long period."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import duckdb
import pytest

from advice.test_judge import SQL, make_rule
from sonde.advice.judge import advise, judge, judge_stretches
from sonde.advice.period import find_period
from sonde.advice.stretches import Stretches, choose_stretches, list_ends
from sonde.store.held import HeldRecording
from sonde.store.recording import open_recording
from support.handmade_machine import record

DAY = 8640  # pieces of ten seconds


def count_watched(stretches: Stretches, count: int) -> int:
    return sum(map(stretches.has, range(count)))


def test_what_is_no_longer_than_two_hours_is_judged_whole() -> None:
    assert choose_stretches(720, 10, 1) is None
    assert choose_stretches(721, 10, 1) is not None


def test_of_a_day_the_last_hour_is_judged_whole_and_an_hour_of_the_rest() -> None:
    stretches = choose_stretches(DAY, 10, 1)
    assert stretches is not None
    assert all(map(stretches.has, range(DAY - 360, DAY)))
    assert 340 <= count_watched(stretches, DAY) - 360 <= 372
    assert "last 60 min, and before that in 2 min of every 46 min" in stretches.describe(DAY)


@pytest.mark.parametrize("piece_s", [0.5, 10, 60, 3600])
def test_sql_means_the_same_pieces(piece_s: float) -> None:
    count = round(86400 / piece_s)
    stretches = choose_stretches(count, piece_s, 1)
    assert stretches is not None
    sql = f"SELECT range FROM range(-50, {count}) WHERE {stretches.make_sql('range')}"
    found = [row[0] for row in duckdb.sql(sql).fetchall()]
    assert found == [piece for piece in range(count) if stretches.has(piece)]


def test_of_many_processes_less_time_is_looked_at() -> None:
    one, many = choose_stretches(DAY, 10, 1), choose_stretches(DAY, 10, 32)
    assert one is not None
    assert many is not None
    assert count_watched(many, DAY) < count_watched(one, DAY) / 6


def test_rules_that_read_samples_look_at_stretches_others_at_all_and_some_at_the_end() -> None:
    folder = record(4 * 3600, 60, **{name: None for name in ("gpu", "process", "disk", "pressure")})
    names = ("cpu_limit", "swap", "host_memory")
    advice = advise(folder, since="+0s", piece_s=60, rules=names)
    assert {one.judged for one in advice.outcomes if one.judged} == {240}
    assert "of every" in advice.thinned
    stretches = Stretches(late=180, run=2, every=6, piece_s=60)
    some = make_rule("some", SQL + "/* python.stack_sample */")
    late = make_rule("late", AT_ONCE=True)
    with HeldRecording(open_recording(folder).sessions) as recording:
        period = find_period(recording, "+0s", None, 60)
        period = replace(period, stretches=stretches)
        advice = judge(recording, [make_rule("all"), some, late], period)
        assert [one.judged for one in advice.outcomes] == [240, 60 + 60, 60]
        # As `compare` asks: a long period is judged as advise does, by the last hour and stretches.
        period = find_period(recording, "+0s", None, 60)
        advice = judge_stretches(recording, [make_rule("all"), some, late], period)
        assert "of every" in advice.thinned
        every, stretched, last = (one.judged for one in advice.outcomes)
        assert (every, last) == (240, 60)
        assert 60 < stretched < 140


def test_a_long_table_has_only_the_rows_of_the_stretches() -> None:
    folder = record(600, 10)
    count = "SELECT COUNT(*) AS n FROM system.process"
    with HeldRecording(open_recording(folder).sessions) as recording:
        assert recording.fetch(count)[1] == [(60,)]
        recording.thin(["system.process"], "rss_bytes = 0", most=60)
        assert recording.fetch(count)[1] == [(60,)]  # it is not long
        recording.thin(["system.process"], "rss_bytes = 0", most=59)
        assert recording.fetch(count)[1] == [(0,)]


def test_the_last_two_minutes_of_a_process_that_has_ended_are_kept() -> None:
    ended = SimpleNamespace(pid=7, read_sealed=lambda: SimpleNamespace(end_wall_ns=1000 * 10**9))
    alive = SimpleNamespace(pid=8, read_sealed=lambda: None)
    [condition] = list_ends([ended, alive])  # type: ignore[list-item]
    sql = f"""SELECT pid, s FROM (SELECT pid, s, make_timestamptz(s * 1000000) AS ts
        FROM (VALUES (7), (8)) AS one(pid), (VALUES (870), (890), (990)) AS two(s))
        WHERE {condition} ORDER BY s"""
    assert duckdb.sql(sql).fetchall() == [(7, 890), (7, 990)]
