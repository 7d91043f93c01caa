"""Traces of torch's profiler, read piece by piece; and what is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from sonde.errors import Damaged
from sonde.store import kineto_file
from support.torch_traces import BASE_NS, EVENTS, dump, host


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def test_times_are_nanoseconds_since_1970(tmp_path: Path) -> None:
    found = kineto_file.read_trace(write(tmp_path / "t.json", dump(EVENTS)))
    linear = next(span for span in found.spans if span.name == "aten::linear")
    assert (linear.start_ns, linear.dur_ns) == (BASE_NS + 100_000, 200_000)
    gemm = next(work for work in found.works if work.name == "gemm<128>")
    assert (gemm.start_ns, gemm.dur_ns) == (BASE_NS + 400_000, 300_500)


def test_older_torch_counts_from_1970_itself(tmp_path: Path) -> None:
    events = [host("aten::mm", 1_790_000_000_000_001, 3)]
    data = json.dumps({"traceEvents": events}).encode()
    (span,) = kineto_file.read_trace(write(tmp_path / "t.json", data)).spans
    assert span.start_ns == BASE_NS + 1000


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_where_it_is_cut_into_pieces_makes_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    events = [*EVENTS, host("näme → ⊗ 😀", 3, 4.125)]
    data = json.dumps({"baseTimeNanoseconds": 1, "traceEvents": events}, ensure_ascii=False)
    path = write(tmp_path / "t.json", data.encode())
    whole = kineto_file.read_trace(path)
    monkeypatch.setattr(kineto_file, "_PIECE", size)
    assert kineto_file.read_trace(path) == whole
    assert whole.spans[-1].name == "näme → ⊗ 😀"


def test_self_time_is_what_no_inner_span_has() -> None:
    spans = [
        kineto_file.HostSpan(start, dur, name, "op", 1, {})
        for name, start, dur in (("a", 0, 100), ("b", 10, 30), ("c", 15, 10), ("d", 50, 80))
    ]
    found = {span.name: (span.self_ns, span.depth) for span in kineto_file.nest(spans)}
    # d reaches 30 beyond the end of a: only the rest of it is time of a.
    assert found == {"a": (20, 0), "b": (20, 1), "c": (10, 2), "d": (80, 1)}


WHOLE = dump(EVENTS)
PACKED = gzip.compress(WHOLE)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty.json", b""),
        ("cut.json", WHOLE[: len(WHOLE) // 2]),
        ("last.json", WHOLE[:-1]),
        ("cut.json.gz", PACKED[: len(PACKED) // 2]),
        ("tail.json.gz", PACKED[:-9]),
        ("noise.json.gz", PACKED[:100] + b"\xff" * 50 + PACKED[150:]),
        ("plain.json.gz", WHOLE),
        ("list.json", b"[1, 2]"),
        ("events.json", b'{"traceEvents": {"a": 1}}'),
        ("fields.json", b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "x"}]}'),
        ("times.json", b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "x", "ts": "y"}]}'),
        ("deep.json", b'{"a": ' + b"[" * 100_000),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_file_is_one_line(tmp_path: Path, name: str, data: bytes) -> None:
    with pytest.raises(Damaged, match=name) as caught:
        kineto_file.read_trace(write(tmp_path / name, data))
    assert "\n" not in str(caught.value)


def test_every_cut_of_a_file_is_noticed(tmp_path: Path) -> None:
    for at in range(0, len(WHOLE) - 1, 97):
        with pytest.raises(Damaged):
            kineto_file.read_trace(write(tmp_path / "t.json", WHOLE[:at]))
