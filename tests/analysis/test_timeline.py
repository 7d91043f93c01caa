"""Timelines: everything that was recorded, in the importer of chrome://tracing and in Perfetto."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from sonde.errors import Error
from support.handmade_stacks import MS, FakeRecording, FakeSession, export, write
from support.trace_viewer import view

HOSTILE = 'q"uote \\ back\nline\0nul 😀 ' + "x" * 10_000


def record_all() -> FakeRecording:
    """Two ranks with every kind of thing on them."""
    recording = FakeRecording(FakeSession(rank=0), FakeSession(host="beta", pid=200, rank=1))
    for session, tid in ((0, 100), (1, 200)):
        whose = dict(session=session, thread=tid)
        recording.name(tid, "MainThread", session=session).name(tid + 1, "loader", session=session)
        recording.see("main|train", 10, **whose)
        recording.region("step", 0, 50, 1, **whose)
        recording.region(HOSTILE, 10, 20, 2, parent=1, error="ValueError", **whose)
        recording.region("submit", 35, 5, 3, parent=1, **whose)
        recording.region("work", 41, 4, 4, parent=3, thread=tid + 1, session=session)
        for at in range(3):
            recording.region("frame", 60 + 10 * at, 5, 10 + at, domain="video", kind="frame",
                             number=at + 1, **whose)  # fmt: skip
        recording.region("request", 100, 20, 20, **whose).region("request", 105, 20, 21, **whose)
        recording.region("db", 102, 10, 22, parent=20, **whose)
        recording.row("event.open_span", 130, name="stuck", kind="task", domain="video", id=30,
                      **whose)  # fmt: skip
        for at, scope in enumerate(("global", "process", "thread", "task", "marker")):
            recording.row("event.marker", 3 * at, name=f"mark {scope}", scope=scope, id=40 + at,
                          **whose)  # fmt: skip
        recording.row("event.counter", 1, name="loss", value=0.5, **whose)
        recording.row("event.counter", 2, name="loss", domain="video", value=2.0**53 + 1,
                      whole=2**53 + 1, **whose)  # fmt: skip
        recording.row("event.counter", 140, name="last", value=1.0, **whose)
        recording.row("event.counter", 3, name="none", value=float("nan"), **whose)
        recording.row(
            "event.attribute", 11, id=2, key='sh"ard', whole=3, number=3.0, session=session
        )
        recording.row("event.attribute", 11, id=2, key="file", text=HOSTILE, session=session)
        recording.row("python.gc_pause", 20, dur_ns=MS, generation=2, collected=7, uncollectable=0,
                      session=session)  # fmt: skip
        recording.row("python.collective", 30 + session, dur_ns=4_000_000, op="all_reduce",
                      backend="gloo", group_name="0", seq=1, state="ended", step=0, **whose)  # fmt: skip
        recording.row("system.cpu", 5, interval_ns=10**9, cores=2, busy_pct=50.0, user_pct=40.0,
                      system_pct=10.0, iowait_pct=0.0, steal_pct=0.0, load1=0.0, load5=0.0,
                      load15=0.0, session=session)  # fmt: skip
    return recording


def test_the_real_importer_takes_everything_without_a_warning(tmp_path: Path) -> None:
    (said,) = view(write("chrome", record_all().profile(), tmp_path))
    assert said.get("error") is None and said["warnings"] == []
    above = {(one["title"], one["above"]) for one in said["slices"]}
    assert {("step", None), (HOSTILE, "step"), ("submit", "step"), ("work", None)} <= above
    frames = [one for one in said["slices"] if one["title"] == "frame"]
    assert sorted(one["args"]["number"] for one in frames) == [1, 1, 2, 2, 3, 3]
    assert {one["cat"] for one in frames} == {"video,frame"}
    tracks = Counter((one["title"], one["above"]) for one in said["tracks"])
    assert tracks == {("request", None): 4, ("db", "request"): 2}
    marks = Counter(name for name, _, _ in said["instants"]) + Counter(
        one["title"] for one in said["slices"] if one["title"].startswith("mark ")
    )
    assert marks == {f"mark {s}": 2 for s in ("global", "process", "thread", "task", "marker")}
    assert ("mark global", "g") in {(name, scope) for name, scope, _ in said["instants"]}
    assert set(said["flows"][0]) == {"submit", "work"} or ["submit", "work"] in said["flows"]
    assert ["all_reduce", "all_reduce"] in said["flows"]


def test_processes_threads_and_machines_are_named(tmp_path: Path) -> None:
    (said,) = view(write("chrome", record_all().profile(), tmp_path))
    assert set(said["processes"].values()) == {
        "train.py (rank 0, alpha pid 100)", "train.py (rank 1, beta pid 200)", "machine alpha",
        "machine beta",
    }  # fmt: skip
    assert {"MainThread", "MainThread: regions", "loader: regions", "garbage collector"} <= set(
        said["threads"].values()
    )


def test_unfinished_regions_go_to_the_end_and_say_so() -> None:
    events = json.loads(export("chrome", record_all().profile()))["traceEvents"]
    (stuck,) = [e for e in events if e["name"] == "stuck" and e["pid"] == 100]
    assert stuck["args"]["unfinished"] is True and stuck["args"]["kind"] == "task"
    (last, _) = [e["ts"] for e in events if e["name"] == "last"]
    assert last <= stuck["ts"] + stuck["dur"] < last + 1


def test_attributes_errors_and_whole_numbers_are_kept_to_the_last_digit() -> None:
    events = json.loads(export("chrome", record_all().profile()))["traceEvents"]
    (inner,) = [e for e in events if e["name"] == HOSTILE and e["pid"] == 100]
    assert inner["args"] == {"id": 2, "error": "ValueError", 'sh"ard': 3, "file": HOSTILE}
    counts = [e["args"]["value"] for e in events if e["ph"] == "C" and e.get("id") == "video"]
    assert counts == [2**53 + 1] * 2
    assert not [e for e in events if e["name"] == "none"]  # JSON has no NaN


def test_an_attribute_that_is_called_as_one_of_ours_takes_no_ones_place() -> None:
    recording = FakeRecording().region("request", 5, 10, 7)
    for key, value in (("id", 3), ("kind", 4), ("rows", 5)):
        recording.row("event.attribute", 6, id=7, key=key, whole=value, number=float(value))
    recording.row("event.attribute", 6, id=7, key="nothing")
    recording.region("bare", 20, 10, 8).row("event.attribute", 21, id=8, key="nothing")
    events = json.loads(export("chrome", recording.profile()))["traceEvents"]
    assert [e["args"] for e in events if e["ph"] == "X"] == [
        {"id": 7, "id (attribute)": 3, "kind (attribute)": 4, "rows": 5}, {"id": 8},
    ]  # fmt: skip


def test_a_recording_without_samples_has_a_trace() -> None:
    recording = FakeRecording().region("alone", 5, 10, 1)
    events = json.loads(export("chrome", recording.profile()))["traceEvents"]
    assert [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"] == [
        ("alone", 0, 10000)
    ]


def test_nothing_at_all_is_an_error() -> None:
    for name in ("chrome", "perfetto"):
        with pytest.raises(Error, match="no stack was sampled"):
            export(name, FakeRecording().profile())


def read_perfetto(raw: bytes) -> tuple[Counter, dict[int, object], list]:
    """Slices as (name, name above), tracks by number, and the other events, as Perfetto's own
    protobuf classes decode them."""
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = protos.Trace()
    trace.ParseFromString(raw)
    names, tracks, events = {}, {}, []
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        names |= {one.iid: one.name for one in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            assert packet.track_event.track_uuid in tracks or packet.track_event.track_uuid == 0
            events.append((packet.timestamp, packet.track_event))
    slices, stacks, others = Counter(), {}, []
    for at_ns, event in sorted(events, key=lambda pair: pair[0]):
        stack = stacks.setdefault(event.track_uuid, [])
        if event.type == event.TYPE_SLICE_BEGIN:
            slices[names[event.name_iid], stack[-1] if stack else None] += 1
            stack.append(names[event.name_iid])
        elif event.type == event.TYPE_SLICE_END:
            stack.pop()
        else:
            others.append((at_ns, event, names.get(event.name_iid)))
    assert not any(stacks.values())
    return slices, tracks, others


def test_perfettos_own_classes_decode_the_same_slices_as_the_importer(tmp_path: Path) -> None:
    profile = record_all().profile()
    slices, tracks, others = read_perfetto(export("perfetto", profile))
    (said,) = view(write("chrome", profile, tmp_path))
    seen = Counter((one["title"], one["above"]) for one in said["slices"] + said["tracks"])
    seen -= Counter({key: n for key, n in seen.items() if key[0].startswith("mark ")})
    assert slices == seen
    assert {t.process.process_name for t in tracks.values() if t.HasField("process")} == set(
        said["processes"].values()
    )
    assert sum(event.type == event.TYPE_COUNTER for _, event, _ in others) == 12
    assert 2**53 + 1 in [event.counter_value for _, event, _ in others]
    begun = {flow for _, event, _ in others for flow in event.flow_ids}
    ended = {flow for _, event, _ in others for flow in event.terminating_flow_ids}
    assert ended and ended <= begun
