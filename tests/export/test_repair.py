"""`sonde repair`: damaged traces, made as the originals were, become whole ones."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sonde.export import repair_scan
from support.trace_viewer import view

PROCESS, THREAD = 2**63 + 12345, 9 * 10**18 + 77  # hashes of 64 bits, as the original has them
QUOTED = 'say "hi", you\\ there'


def make_event(name: str, ph: str, ts: int, cat: str = "My Domain", **more: object) -> str:
    """An event as the original writes it: nothing is escaped."""
    rest = "".join(f',\n        "{key}": {json.dumps(value)}' for key, value in more.items())
    return (
        f'    {{\n        "name": "{name}",\n        "cat": "{cat}",\n        "ph": "{ph}",\n'
        f'        "ts": {ts},\n        "pid": {PROCESS},\n        "tid": {THREAD}{rest}\n    }}'
    )


def make_events() -> list[str]:
    events = [make_event("outer", "b", 1000, id=THREAD), make_event("inner", "b", 1100, id=THREAD),
              make_event("inner", "e", 1200, id=THREAD), make_event("outer", "e", 1300, id=THREAD)]  # fmt: skip
    for at in range(2000, 2300, 100):
        events += [make_event("frame", "(", at, "My Domain,frame"),
                   make_event("frame", ")", at + 50, "My Domain,frame")]  # fmt: skip
    events += [make_event(f"marker {at}", "n", 3000 + at, "My Domain,instant_marker", s=scope)
               for at, scope in enumerate("gpppp")]  # fmt: skip
    events += [make_event(QUOTED, "B", 4000, "event"), make_event(QUOTED, "E", 4100, "event"),
               make_event("tab\there", "B", 4150, "event"), make_event("tab\there", "E", 4160, "event"),
               make_event("alone", "E", 4200, "event"), make_event("never", "B", 4300, "event")]  # fmt: skip
    counter = make_event("number", "C", 5000).removesuffix("\n    }")
    return [*events, counter + ',\n        "args": { "number": 5 }\n    }']


BODY = ",\n".join(make_events())
START = '{\n    "traceEvents": [\n'
DAMAGED = {
    "whole": START + BODY + '\n    ],\n    "displayTimeUnit": "ms"\n}\n',
    "second": "[ ," + BODY + "]",
    "endless": START + BODY + ",\n",
    "cut": START + BODY + ',\n    {\n        "name": "half of',
    "gzip": START + BODY + "\n",
}


def mend(sonde_cli, folder: Path, name: str, suffix: str = ".json") -> tuple[Path, str]:
    source, target = folder / f"{name}.json", folder / f"mended-{name}{suffix}"
    raw = DAMAGED[name].encode()
    source.write_bytes(gzip.compress(raw)[:-20] if name == "gzip" else raw)
    done = sonde_cli("repair", source, "-o", target)
    assert done.returncode == 0, done.stderr
    return target, done.stderr


def test_every_damaged_trace_loads_without_a_warning_with_all_frames_and_markers(
    sonde_cli, tmp_path: Path
) -> None:
    with pytest.raises(ValueError):
        json.loads(DAMAGED["whole"])
    paths = [mend(sonde_cli, tmp_path, name)[0] for name in DAMAGED if name != "gzip"]
    for said in view(*paths):
        assert said.get("error") is None and said["warnings"] == []
        tracks = Counter((one["title"], one["above"]) for one in said["tracks"])
        assert tracks == {("outer", None): 1, ("inner", "outer"): 1, ("frame", None): 3}
        assert sorted(name for name, _, _ in said["instants"]) == [f"marker {i}" for i in range(5)]
        slices = {one["title"]: one for one in said["slices"]}
        assert set(slices) == {QUOTED, "tab\there", "never"}
        assert slices["never"]["args"]["unfinished"] is True
        assert round(slices[QUOTED]["dur"] * 1000) == 100


def test_what_was_repaired_is_told_on_stderr(sonde_cli, tmp_path: Path) -> None:
    said = mend(sonde_cli, tmp_path, "cut")[1]
    for words in ("3 times: a frame", "5 times: a marker without an id", "an event that is cut",
                  "an end without a beginning", "a beginning without an end", "not escaped",
                  "the number of a process"):  # fmt: skip
        assert words in said
    assert "commas too many" in mend(sonde_cli, tmp_path, "second")[1]


def test_a_cut_gzip_is_read_as_far_as_it_goes(sonde_cli, tmp_path: Path) -> None:
    path, said = mend(sonde_cli, tmp_path, "gzip")
    assert "gzip without its end" in said
    assert [e for e in json.loads(path.read_text())["traceEvents"] if e["name"] == "outer"]


def test_several_files_become_one_and_keep_their_processes_apart(sonde_cli, tmp_path: Path) -> None:
    first, _ = mend(sonde_cli, tmp_path, "whole")
    done = sonde_cli("repair", first, first, "-o", tmp_path / "both.json.gz")
    assert done.returncode == 0 and "nothing to repair" in done.stderr
    events = json.loads(gzip.decompress((tmp_path / "both.json.gz").read_bytes()))["traceEvents"]
    assert len({e["pid"] for e in events if e["name"] == "outer"}) == 2
    (said,) = view(tmp_path / "both.json.gz")
    assert said["warnings"] == []


def test_perfettos_format_is_chosen_by_the_suffix(sonde_cli, tmp_path: Path) -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    path, _ = mend(sonde_cli, tmp_path, "whole", ".pftrace")
    trace = protos.Trace()
    trace.ParseFromString(path.read_bytes())
    names = {one.name for packet in trace.packet for one in packet.interned_data.event_names}
    assert {"outer", "inner", "frame", QUOTED, "marker 4"} <= names


def test_what_is_no_trace_is_told_in_one_line(sonde_cli, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("nothing here")
    done = sonde_cli("repair", tmp_path / "x.json", "-o", tmp_path / "y.json")
    assert done.returncode == 4 and "no trace events in it" in done.stderr
    assert not (tmp_path / "y.json").exists()


ODD = {  # events, and what is said of them
    '{"ph":"X","ts":1e400,"dur":1,"name":"a"}': "4 times: left out: an event without a kind or a time",
    '{"ph":"X","ts":NaN,"name":"a"}': "",
    '{"ph":"X","ts":[1],"name":"a"}': "",
    '{"ph":"X","ts":1e30,"name":"a"}': "",
    '{"ph":"X","ts":1,"dur":1e400,"name":"a"}': "",
    '{"ph":"X","ts":1,"name":"a","args":{"x":[NaN,1e999]}}': "a number that JSON does not have",
    '{"ph":"C","ts":1,"name":"a","args":{"x":NaN}}': "a counter without a number",
    '{"ph":"C","ts":1,"name":"a","args":{"x":Infinity}}': "",
    '{"ph":"C","ts":1,"name":"a","args":{"x":' + "9" * 400 + "}}": "",
    '{"ph":"B","ts":1,"name":"a","args":null}': "a beginning without an end",
    '{"ph":"X","ts":1,"pid":[1],"name":"a"}': "the number of a process",
    '{"ph":"X","ts":1,"args":' + "[" * 99999 + "}": "an event that is cut or damaged",
}


def test_values_that_no_viewer_takes_are_repaired(sonde_cli, tmp_path: Path) -> None:
    good = '{"ph":"X","pid":1,"tid":1,"ts":5,"dur":2,"name":"good"}'
    source, target = tmp_path / "odd.json", tmp_path / "mended.json"
    source.write_text("[" + ",".join((*ODD, good)) + "]")
    for path in (target, tmp_path / "mended.pftrace"):
        done = sonde_cli("repair", source, "-o", path)
        assert done.returncode == 0, done.stderr
        assert [words for words in ODD.values() if words not in done.stderr] == []

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    events = json.loads(target.read_text(), parse_constant=refuse)["traceEvents"]
    assert [one["dur"] for one in events if one["name"] == "good"] == [2]


def test_an_end_without_a_name_ends_the_innermost(sonde_cli, tmp_path: Path) -> None:
    source, target = tmp_path / "bare.json", tmp_path / "mended.json"
    begins = [{"ph": "B", "pid": 1, "tid": 1, "ts": at, "name": name}
              for at, name in ((1, "outer"), (2, "inner"))]  # fmt: skip
    ends = [{"ph": "E", "pid": 1, "tid": 1, "ts": at} for at in (3, 5)]
    source.write_text(json.dumps(begins + ends))
    assert "nothing to repair" in sonde_cli("repair", source, "-o", target).stderr
    events = json.loads(target.read_text())["traceEvents"]
    assert {one["name"]: (one["ph"], one["dur"]) for one in events if one["ph"] != "M"} == {
        "outer": ("X", 4), "inner": ("X", 1),
    }  # fmt: skip


def test_damaged_events_cost_the_same_wherever_they_are() -> None:
    """Python counts the lines before an error in JSON; that made long traces take hours."""
    counts = []
    for many in (200, 2000):
        text = "[" + ",\n".join(['{"name": "a"b", "ph": "X", "ts": 1}'] * many) + "]"
        watched = _CountedText(text)
        events = list(repair_scan.iter_events(watched, Counter()))
        assert events == [{"name": 'a"b', "ph": "X", "ts": 1}] * many
        counts.append(watched.searched)
    assert counts == [0, 0]


class _CountedText(str):
    """A text that knows how often it was searched for line breaks, as errors of JSON do."""

    searched = 0

    def count(self, *words: object) -> int:  # type: ignore[override]
        type(self).searched += 1
        return super().count(*words)  # type: ignore[arg-type]


def test_events_without_a_comma_in_them_are_not_each_read_to_the_end() -> None:
    """Their texts seem to go on in the next event, and so on: 2,000 took more than a minute."""
    calls = []
    for many in (100, 400):
        text = "[" + '{"ph":"X","name":"x" "ts":1}' * many
        calls.append(_count_calls(lambda text=text: list(repair_scan.iter_events(text, Counter()))))
    assert calls[1] < 5 * calls[0]


def _count_calls(work: Callable[[], object]) -> int:
    """How many functions in Python are called for this work."""
    number = 0

    def count(_frame: object, what: str, _arg: object) -> None:
        nonlocal number
        number += what == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return number


def test_an_event_longer_than_a_piece_is_read() -> None:
    for name in ("x" * 100_000, '"' * 30_000 + "x" * 100_000):
        text = '[{"name": "a"}, {"name": "' + name + '", "ph": "X"}, {"name": "b"}]'
        names = [event["name"] for event in repair_scan.iter_events(text, Counter())]
        assert names == ["a", name, "b"]
