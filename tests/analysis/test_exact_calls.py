"""The calls that a recording holds: publications, whole ones, and pstats reads them."""

from __future__ import annotations

import marshal
import os
import pstats
import signal

import pytest

import sonde
from conftest import wait_for
from sonde import _core
from sonde.job.recorder import recorder
from sonde.job.sources import call as source
from support.call_programs import HEAD, ON, by_name, read

pytestmark = pytest.mark.usefixtures("no_collector")

ENDED = """
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
sonde.start(**ON)
fib(5)
"""


def test_pstats_reads_the_numbers(run, tmp_path) -> None:
    run(HEAD + ENDED)
    path = tmp_path / "ours.prof"
    path.write_bytes(marshal.dumps(read()))
    stats = pstats.Stats(str(path))
    stats.calc_callees()
    fib = by_name(stats.stats, "fib")
    assert fib[:2] == (1, 15) and {key[2] for key in fib[4]} == {"fib", "<module>"}


PERIODIC = """
import sonde.job.sources.call as source
source.EVERY_NS = 20_000_000
def leaf(): pass
def loop():
    print("ready", flush=True)
    while True: leaf()
sonde.start(**ON)
loop()
"""


def test_a_killed_program_left_its_newest_publication(start) -> None:
    process = start(HEAD + PERIODIC)
    newest = "SELECT MAX(publication) AS n FROM python.call_publication"
    wait_for(lambda: (sonde.open(process.pid).query(newest).to_pylist()[0]["n"] or 0) > 5)
    first = by_name(read(process.pid), "leaf")[1]
    wait_for(lambda: by_name(read(process.pid), "leaf")[1] > first)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    stats = read(process.pid)
    assert by_name(stats, "leaf")[1] > first
    assert by_name(stats, "loop")[:2] == by_name(stats, "<module>")[:2] == (1, 1)
    assert by_name(stats, "loop")[3] >= by_name(stats, "leaf")[3] > 0


def leaf() -> None:
    pass


def test_rows_of_an_incomplete_publication_are_not_used() -> None:
    folder = sonde.start(**ON)
    leaf()
    recorder._sources["call"][0].publish()
    before = by_name(read(folder), "leaf")
    emit = recorder.open_table(source.Call, "python.call")
    me = leaf.__code__
    emit(_core.clock_ns(), 10**9, "leaf", me.co_filename, me.co_firstlineno, None, None, None,
         99, 99, 99, 99)  # fmt: skip
    assert by_name(read(folder), "leaf") == before


def test_only_what_changed_is_published() -> None:
    folder = sonde.start(**ON)
    leaf()
    recorder._sources["call"][0].publish()
    recorder._sources["call"][0].publish()
    rows = sonde.open(folder).query(
        "SELECT publication, COUNT(*) AS n FROM python.call WHERE func = 'leaf' GROUP BY ALL"
    )
    assert [row["n"] for row in rows.to_pylist()] == [2]  # the function and its caller, once


ROUND = """
import sonde.job.sources.call as source
source.Call.RING_BYTES = 2**15  # some hundred rows, twice what the end of a program needs
def leaf(): pass
sonde.start(**ON)
leaf()
for _ in range(600): publish()
"""


def test_what_no_longer_changes_stays_where_the_ring_goes_round(run) -> None:
    run(HEAD + ROUND)
    lost = "SELECT overwritten FROM sonde.loss WHERE table_name = 'python.call'"
    assert sonde.open("all").query(lost).to_pylist()[0]["overwritten"] > 0
    assert by_name(read(), "leaf")[:2] == (1, 1)


def test_while_paused_nothing_is_published_and_afterwards_all() -> None:
    folder = sonde.start(**ON)
    publish = recorder._sources["call"][0].publish
    publish()
    sonde.pause()
    leaf()
    publish()
    assert not [key for key in read(folder) if key[2] == "leaf"]
    sonde.resume()
    publish()
    assert by_name(read(folder), "leaf")[:2] == (1, 1)
