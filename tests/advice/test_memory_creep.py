"""Memory that grows: the line is judged by the time in which the heap was recorded, not by all of it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

import sonde
from conftest import wait_for
from sonde import _core
from sonde.advice.judge import advise
from sonde.job.recorder import recorder
from sonde.tables import name_row
from sonde.tables.heap import HeapHistory, HeapSampling
from sonde.tables.recording import SourceLog
from sonde.tables.system import Process
from support.handmade_machine import PROCESS, make_blank

MB, NS = 10**6, 10**9


def leak_here() -> int:
    """Return the id of a stack that ends in this very function."""
    folder = recorder.session.folder  # type: ignore[union-attr]
    sql = "SELECT stack FROM python.frame WHERE func = 'leak_here' AND depth < 3 LIMIT 1"

    def find() -> int | None:
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            sum(range(100))
        return next(iter(sonde.open(folder).query(sql)["stack"].to_pylist()), None)

    return wait_for(find)  # type: ignore[return-value]


def write(row: type, values: Sequence[object]) -> None:
    recorder.open_table(row, name_row(row))(*values)


def judge(
    looks: Sequence[tuple[int, int, float]], seconds: int = 120, mb_s: float = 2.0, **window: str
) -> tuple[str, str, dict[str, float]]:
    """Judge a process that grows, whose heap is recorded for these times; while it is, the line holds
    so many MB/s more. Return title, line and evidence."""
    folder = sonde.start(collector="off")
    assert folder
    stack, pid = leak_here(), recorder.session.pid  # type: ignore[union-attr]
    base_ns = _core.clock_ns() - (seconds + 1) * NS
    blank = make_blank("process") | dict(PROCESS)
    for t in range(seconds + 1):
        row = blank | {
            "t_ns": base_ns + t * NS,
            "process": pid,
            "rss_bytes": round((500 + mb_s * t) * MB),
        }
        write(Process, list(row.values()))
    for on, off, line_mb_s in looks:
        write(SourceLog, (base_ns + on * NS, "heap", "on", None))
        for t in range(on, off + 1):
            held = round((t - on) * line_mb_s * MB)
            write(HeapHistory, (base_ns + t * NS, stack, "str", held, 1, held, 1))
            write(HeapSampling, (base_ns + t * NS, *[0] * 9))
        write(SourceLog, (base_ns + off * NS, "heap", "off", None))
    sonde.stop()
    advice = advise(folder, rules=["memory_creep"], since=window.get("since", f"{seconds + 5}s"))
    (found,) = advice.findings
    return found.title, found.line, found.evidence


def test_the_line_is_named_though_the_heap_was_recorded_for_a_part_of_the_time() -> None:
    title, line, evidence = judge([(60, 90, 1.8)])
    assert title.endswith("allocates what stays, as str objects") and " in leak_here" in line
    assert evidence["grown_while_heap_recorded_bytes"] == pytest.approx(44 * MB, rel=0.1)
    assert evidence["grown_at_line_bytes"] == pytest.approx(40 * MB, rel=0.1)


def test_what_a_program_always_holds_is_no_growth() -> None:
    looks = [(60, 90, 0.3)]
    title, line, _ = judge(looks)
    assert title.endswith("outside of the heap that sonde sees") and line == ""


def test_of_two_looks_the_later_one_counts_and_what_the_first_had_seen_is_forgotten() -> None:
    title, line, evidence = judge([(10, 50, 0.1), (70, 110, 1.8)])
    assert "allocates what stays" in title and line
    assert evidence["grown_while_heap_recorded_bytes"] == pytest.approx(60 * MB, rel=0.1)
    title, line, _ = judge([(10, 50, 1.8), (70, 110, 0.1)])
    assert title.endswith("outside of the heap that sonde sees")


def test_a_look_before_the_time_that_is_judged_tells_the_line_all_the_same() -> None:
    title, line, evidence = judge([(10, 40, 1.8)], since="70s")
    assert "allocates what stays" in title and line
    assert evidence["grown_while_heap_recorded_bytes"] == pytest.approx(44 * MB, rel=0.1)


def test_a_look_at_a_memory_that_did_not_grow_tells_nothing() -> None:
    title, line, evidence = judge([(60, 62, 0.0)])
    assert title == "The memory of the process keeps growing" and line == ""
    assert "grown_while_heap_recorded_bytes" not in evidence
