"""sonde events: sums of what a program marks, exact or of a window, and what is open."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

import sonde
from conftest import TIMEOUT_S, wait_for
from sonde.analysis.event_sums import EventReport, EventSelection, read_report
from sonde.analysis.event_table import sort_report
from sonde.analysis.window import Window
from sonde.job.recorder import recorder
from sonde.store.recording import open_recording
from sonde.tables.event import Counter, Marker, Span
from sonde.words import show_curve

MS = 10**6
HOUR = 3600 * 10**9


class Hand:
    """Rows as the program would have written them, at times of our own."""

    def __init__(self) -> None:
        self.folder = sonde.start(collector=False, source_stack=False)
        assert self.folder is not None
        session = recorder.session
        assert session is not None
        self._span = recorder.open_table(Span, "event.span")
        self._counter = recorder.open_table(Counter, "event.counter")
        self._marker = recorder.open_table(Marker, "event.marker")
        self.start_ns = time.monotonic_ns()
        self.recording = open_recording(self.folder)
        self.offset_ns = self.recording.sessions[0].wall_offset_ns

    def span(self, name, at_ms, dur_ms, *, domain=None, kind="span", paused_ms=0) -> None:
        self._span(self.start_ns + at_ms * MS, dur_ms * MS, name, domain, kind, 1, None, 1, 1,
                   paused_ms * MS, None, None, None, 0)  # fmt: skip

    def count(self, name, at_ms, value) -> None:
        self._counter(self.start_ns + at_ms * MS, name, None, value, None, 1, 0)

    def mark(self, name, at_ms) -> None:
        self._marker(self.start_ns + at_ms * MS, name, None, "process", 1, None, 1, 0)

    def read(self, since_ms: int, until_ms: int, **choice: object) -> EventReport:
        """Of a window, later than which it is now."""
        begin = self.start_ns + self.offset_ns
        window = Window(begin + since_ms * MS, begin + until_ms * MS)
        return read_report(self.recording, EventSelection(window, **choice), begin + HOUR)


@pytest.fixture
def hand() -> Hand:
    return Hand()


# ---- numbers -------------------------------------------------------------------------------------


def test_a_region_has_its_sums_percentiles_and_share_of_the_window(hand: Hand) -> None:
    for at in range(100):
        hand.span("load", 10 * at, at + 1, domain="net", kind="task")
    [load] = hand.read(0, 2000).regions
    assert (load.kind, load.domain, load.name, load.count) == ("task", "net", "load", 100)
    assert (load.total_ns, load.min_ns, load.max_ns) == (5050 * MS, MS, 100 * MS)
    assert load.mean_ns == 50.5 * MS and load.share == pytest.approx(5050 / 2000, rel=1e-6)
    assert load.parts_ns == pytest.approx([50.5 * MS, 95.05 * MS, 99.01 * MS])


def test_a_region_belongs_to_the_window_in_which_it_ends(hand: Hand) -> None:
    hand.span("a", 0, 100)
    hand.span("b", 50, 100)
    assert [line.name for line in hand.read(0, 120).regions] == ["a"]
    assert [line.name for line in hand.read(120, 200).regions] == ["b"]


def test_pauses_do_not_count(hand: Hand) -> None:
    hand.span("load", 0, 100, paused_ms=30)
    [load] = hand.read(0, 1000).regions
    assert load.total_ns == load.min_ns == load.max_ns == 70 * MS
    assert list(load.parts_ns) == [70 * MS] * 3


def test_the_mean_of_a_counter_weighs_each_value_by_how_long_it_held(hand: Hand) -> None:
    hand.count("queue", 0, 100.0)  # holds in the window until 20 ms, set before it
    hand.count("queue", 20, 0.0)
    hand.count("queue", 80, 10.0)
    [queue] = hand.read(10, 110).counters
    assert queue.mean == pytest.approx((10 * 100 + 60 * 0 + 30 * 10) / 100, rel=1e-3)
    assert (queue.count, queue.last, queue.min, queue.max) == (2, 10, 0, 100)


def test_the_curve_of_a_counter_keeps_its_value_until_the_next(hand: Hand) -> None:
    hand.count("up", 1, 1.0)
    hand.count("up", 51, 8.0)
    [up] = hand.read(0, 100).counters
    assert up.curve == [1.0] * 12 + [8.0] * 12
    assert show_curve(up.curve) == "▁" * 12 + "█" * 12


def test_values_without_a_number_do_not_spoil_the_curve() -> None:
    curve = [0.0, float("nan"), 7.0, None, float("inf")]
    assert show_curve(curve) == "▁ █  "


def test_markers_have_a_count_and_a_last_time(hand: Hand) -> None:
    for at in (1, 5, 30):
        hand.mark("epoch", at)
    [epoch] = hand.read(0, 10).markers
    last_ms = (epoch.last_ns - hand.start_ns - hand.offset_ns) / MS
    assert epoch.count == 2 and last_ms == pytest.approx(5, abs=0.002)


def test_only_names_that_match_are_shown(hand: Hand) -> None:
    for name in ("load", "reload", "it's", "step"):
        hand.span(name, 0, 1)
    assert {one.name for one in hand.read(0, 10, pattern="^load|step").regions} == {"load", "step"}
    assert [one.name for one in hand.read(0, 10, pattern="t's").regions] == ["it's"]


def test_an_hour_is_the_first_thing_that_is_seen(hand: Hand) -> None:
    stuck, brief = sonde.span("stuck"), sonde.span("brief")
    with brief, stuck:
        report = read_report(hand.recording, EventSelection(), time.time_ns() + HOUR)
        long = {one.name: (one.is_long, one.open_ns > HOUR - 10**9) for one in report.open}
        soon = read_report(hand.recording, EventSelection())
    assert long == {"stuck": (True, True), "brief": (True, True)}
    assert [one.is_long for one in soon.open] == [False, False]
    assert report.open[0].thread == os.getpid()


# ---- the command ---------------------------------------------------------------------------------

MARKS = """
import sys, time
import sonde
from sonde import _core
folder = sonde.start(collector=False, ring_bytes=8192)
for step in range(int(sys.argv[1])):
    with sonde.span("step"):
        pass
frame = _core.Region("frame", "net", "frame")
frame.start()
frame.stop()
loss = sonde.counter("loss")
loss.set_value(2.5)
loss.set_value(0.5)
sonde.mark("epoch\\x1b[31m")
"""


def test_sums_are_exact_when_rows_have_been_overwritten(run, sonde_cli) -> None:
    folder = run(MARKS + "print(folder)", "5000").stdout.strip()
    done = sonde_cli("events", folder, "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    kept = open_recording(folder).query("SELECT count(*) AS n FROM event.span")["n"][0].as_py()
    assert rows["step"]["count"] == 5000 > kept
    assert rows["step"]["rows"] + rows["frame"]["rows"] == kept
    assert f"the rows of {5001 - kept:,} are gone" in sonde_cli("events", folder).stdout
    assert (rows["frame"]["kind"], rows["frame"]["domain"]) == ("frame", "net")
    assert (rows["loss"]["last"], rows["loss"]["min"], rows["loss"]["max"]) == (0.5, 0.5, 2.5)
    assert rows["epoch\x1b[31m"]["count"] == 1


def test_csv_has_the_same_rows_and_a_table_no_escape_of_the_programs(run, sonde_cli) -> None:
    folder = run(MARKS + "print(folder)", "3").stdout.strip()
    rows = list(csv.DictReader(io.StringIO(sonde_cli("events", folder, "--format", "csv").stdout)))
    assert [row["name"] for row in rows if row["kind"] in ("span", "frame")] == ["step", "frame"]
    table = sonde_cli("events", folder).stdout
    assert re.search(r"^step +span +3 ", table, re.MULTILINE)
    assert "epoch\\x1b[31m" in table and "\x1b" not in table


def test_lines_are_sorted_by_each_key_both_ways(hand: Hand) -> None:
    for name, count, dur_ms in (("a", 1, 50), ("b", 3, 20), ("c", 2, 5)):
        for at in range(count):
            hand.span(name, 100 * at, dur_ms)
    report = hand.read(0, 1000)

    def sort(key: str, ascending: bool) -> str:
        ordered = sort_report(report, key, ascending=ascending)
        return "".join(line.name for line in ordered.regions)

    orders = {"total": "bac", "avg": "abc", "min": "abc", "max": "abc", "count": "bca"}
    assert {key: sort(key, ascending=False) for key in orders} == orders
    assert {key: sort(key, ascending=True)[::-1] for key in orders} == orders
    assert sort("name", ascending=False) == sort("name", ascending=True) == "abc"


def test_ranks_are_one_line_with_their_spread_or_a_line_each(run, sonde_cli) -> None:
    for rank in range(2):
        run(MARKS, str(10 * (rank + 1)), RANK=str(rank), WORLD_SIZE="2", SONDE_JOB="trained")
    merged = json.loads(sonde_cli("events", "trained", "--format", "json").stdout)
    [step] = [row for row in merged if row["name"] == "step"]
    assert (step["count"], step["processes"], step["rank"]) == (30, 2, None)
    assert step["slowest_ns"] <= step["total_ns"] and step["slowest_rank"] in (0, 1)
    each = json.loads(sonde_cli("events", "trained", "--per-rank", "--format", "json").stdout)
    counts = {row["rank"]: row["count"] for row in each if row["name"] == "step"}
    assert counts == {0: 10, 1: 20}
    table = sonde_cli("events", "trained").stdout
    assert re.search(r"^step .* rank [01]: ", table, re.MULTILINE)


def test_of_a_killed_process_is_seen_what_was_open(start, sonde_cli) -> None:
    process = start(MARKS + "never = sonde.span('never')\nnever.start()\nprint('ready', flush=True)\n"
                    "time.sleep(600)", "3")  # fmt: skip
    process.send_signal(signal.SIGKILL)
    process.wait()
    rows = json.loads(sonde_cli("events", process.pid, "--format", "json").stdout)
    [never] = [row for row in rows if row["open"]]
    assert never["name"] == "never" and never["thread"] == process.pid
    assert 0 <= never["open_ns"] < TIMEOUT_S * 10**9


def test_a_program_that_marks_nothing_is_told_how(run, sonde_cli) -> None:
    folder = run("import sonde; print(sonde.start(collector=False))").stdout.strip()
    done = sonde_cli("events", folder)
    assert done.returncode == 0 and "sonde.span" in done.stdout
    assert json.loads(sonde_cli("events", folder, "--format", "json").stdout) == []


def test_what_cannot_be_is_said_in_a_line(run, sonde_cli) -> None:
    folder = run("import sonde; print(sonde.start(collector=False))").stdout.strip()
    for words, said in (("--name (", "regular"), ("--watch --format json", "--watch"),
                        ("--watch soon", "soon"), ("--since never", "never")):  # fmt: skip
        done = sonde_cli("events", folder, *words.split())
        assert done.returncode > 0 and said in done.stderr
        assert done.stderr.count("\n") == 1


def test_watch_draws_anew_until_the_program_ends(start) -> None:
    process = start(
        MARKS + "print('ready', flush=True)\n"
        "while True:\n    sonde.counter('ticks').increment()\n    time.sleep(0.01)\n",
        "3",
    )
    ours, theirs = pty.openpty()
    watch = subprocess.Popen(
        [sys.executable, "-m", "sonde", "events", str(process.pid), "--watch", "100ms"],
        stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    seen = b""

    def has(text: bytes) -> bool:
        nonlocal seen
        if text not in seen:
            seen += os.read(ours, 65536)
        return text in seen

    wait_for(lambda: has(b"loss"))
    assert seen.startswith(b"\x1b[?1049h")
    home = seen.count(b"\x1b[H")
    wait_for(lambda: has(b"no such text") or seen.count(b"\x1b[H") > home)
    process.kill()
    try:
        wait_for(lambda: has(b"\x1b[?1049l"))
    finally:
        watch.wait(TIMEOUT_S)
        os.close(ours)
    assert watch.returncode == 0
