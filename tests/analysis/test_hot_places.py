"""The places that make up the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sonde.analysis.code_tree import OUTSIDE, read_tree
from sonde.analysis.hot_places import HotPlace, list_places
from sonde.analysis.profile import Profile, Selection
from sonde.analysis.window import find_window
from sonde.analysis.work_kinds import find_kind
from support.handmade_stacks import FakeRecording

STANDARD = "/opt/py/lib/python3.12"
LOADS = ("loads", f"{STANDARD}/json/__init__.py", 300, 290)


def find(recording: FakeRecording, **options) -> list[HotPlace]:
    profile = Profile(recording, Selection(find_window(recording, None, None)))
    return list_places(read_tree(profile, hot_calls=OUTSIDE), **options)


def test_places_are_own_lines_and_what_they_call_whoever_called_them() -> None:
    main, other = ("main", "/job/app.py", 5, 1), ("other", "/job/app.py", 50, 48)
    parse = ("parse", "/job/app.py", 20, 18)
    recording = (
        FakeRecording()
        .see([main, parse, LOADS], 40, wall=40)
        .see([other, parse, LOADS], 60, wall=20)
        .see([main], 90, wall=30, cpu=0)
        .see([main], 100, wall=10)
        .see([other], 101, wall=1)
    )
    assert find(recording) == [
        HotPlace("parse", "/job/app.py", 20, "json.loads", "serialising and parsing", "working",
                 0.06, 59.4, "main (app.py:5)"),
        HotPlace("main", "/job/app.py", 5, "", "", "waiting", 0.03, 29.7),
        HotPlace("main", "/job/app.py", 5, "", "", "working", 0.01, 9.9),
    ]  # fmt: skip
    assert find(recording)[0].what == "json.loads (serialising and parsing)"
    waiting = "waiting for other threads or processes"
    start = HotPlace("main", "", 5, "threading.Thread.start", waiting, "working", 1.0, 50.0)
    assert start.what == "threading.Thread.start"
    assert replace(start, state="waiting").what == f"threading.Thread.start ({waiting})"
    assert len(find(recording, most=1)) == 1


def test_what_a_server_does_itself_is_told_by_the_function_that_takes_the_time() -> None:
    serve = ("run", "/opt/py/lib/python3.12/site-packages/uvicorn/server.py", 80, 70)
    encode = ("encode", "/opt/py/lib/python3.12/site-packages/fastapi/encoders.py", 300, 290)
    app = ("main", "/job/app.py", 5, 1)
    recording = (
        FakeRecording().see([serve, encode], 40, wall=40).see([serve, app, LOADS], 50, wall=10)
    )
    assert [(one.func, one.file.rpartition("/")[2], one.line, one.call) for one in find(recording)] == [
        ("encode", "encoders.py", 300, ""), ("main", "app.py", 5, "json.loads"),
    ]  # fmt: skip


def test_so_is_what_an_event_loop_does_that_the_program_has_started_itself() -> None:
    standard = "/opt/py/lib/python3.12/asyncio"
    main = ("main", "/job/serve.py", 5, 1)
    run = ("Server.run", "/opt/py/lib/python3.12/site-packages/uvicorn/server.py", 80, 70)
    back = ("Handle._run", f"{standard}/events.py", 88, 80)
    encode = ("encode", "/opt/py/lib/python3.12/site-packages/fastapi/encoders.py", 300, 290)
    handler = ("handle", "/job/serve.py", 20, 19)
    recording = FakeRecording().see([main, run, back, encode], 40, wall=40)
    recording.see([main, run, back, handler, LOADS], 60, wall=20).see([main, encode], 80, wall=20)
    assert [(one.func, one.line, one.call) for one in find(recording)] == [
        ("encode", 300, ""), ("main", 5, "fastapi.encode"), ("handle", 20, "json.loads"),
    ]  # fmt: skip


def test_the_time_in_which_event_loops_wait_is_told_and_counts() -> None:
    main = ("main", "/job/app.py", 5, 1)
    (loops, own) = find(FakeRecording().see([main], 20, wall=20), loops_ns=80_000_000)
    assert loops.what.startswith("event loops") and (loops.state, loops.share_pct) == (
        "waiting",
        80,
    )
    assert (own.func, own.share_pct) == ("main", 20)


def test_the_c_function_that_an_own_line_calls_is_named_and_that_of_a_library_is_not() -> None:
    main = ("main", "/job/app.py", 5, 1)
    recording = (
        FakeRecording()
        .see([main], 60, wall=60, call="list.__contains__")
        .see([main, LOADS], 90, wall=30, call="_json.scanner")
        .see([main], 100, wall=10, call="posix.fsync", cpu=0)
    )
    found = [(one.call, one.kind, one.state, one.share_pct) for one in find(recording)]
    assert found == [
        ("in (list)", "searching in a list", "working", 60.0),
        ("json.loads", "serialising and parsing", "working", 30.0),
        ("os.fsync", "files", "waiting", 10.0),
    ]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("json.loads", "serialising and parsing"),
        ("django.QuerySet.__iter__", "a database"),
        ("django.render", ""),
        ("import numpy", "importing"),
        ("multiprocessing.Process.start", "starting processes"),
        ("os.wait", "waiting for a child process"),
        ("multiprocessing.Pool.map", "waiting for other threads or processes"),
        ("resize.go", ""),
        ("+ (str)", "copying a long text or list"),
        ("[] (numpy.ndarray)", "single elements of arrays"),
        ("* (numpy.ndarray)", "numeric work"),
    ],
)
def test_a_call_has_a_kind_by_the_longest_name_that_is_known(call: str, kind: str) -> None:
    assert find_kind(call) == kind


def test_time_that_is_in_no_file_has_no_place() -> None:
    loops = HotPlace("", "", 0, "event loops", "", "waiting", 1.0, 50.0)
    assert loops.show_place("/job") == ""
    line = HotPlace("load", "/job/app.py", 3, "", "", "working", 1.0, 50.0)
    assert line.show_place("/job") == "app.py:3"


def test_what_is_in_no_single_function_of_a_server_says_whose_code_it_is_in() -> None:
    site = f"{STANDARD}/site-packages"
    start = ("<module>", f"{site}/uvicorn/__main__.py", 4, 1)
    recording = FakeRecording().see([("main", "/job/app.py", 5, 1)], 10)
    for n in range(30):
        recording.see([start, (f"dump_{n}", f"{STANDARD}/json/encoder.py", n, 1)], 20 + n, wall=1)
    (server, _) = find(recording)
    assert server.call == "uvicorn (in json)"
