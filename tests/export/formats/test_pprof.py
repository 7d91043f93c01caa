"""pprof: read by protobuf and by pprof itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.handmade_stacks import (
    CPU,
    HOSTILE,
    MS,
    START_NS,
    WALL,
    export,
    record_training,
    write,
)
from support.pprof_messages import decode_pprof


def test_protobuf_reads_pprof_and_the_sums_are_right() -> None:
    found = decode_pprof(export("pprof", record_training().profile(weight="cpu")))
    texts = found.string_table
    assert texts[0] == ""
    assert [(texts[kind.type], texts[kind.unit]) for kind in found.sample_type] == [
        ("samples", "count"), ("wall", "nanoseconds"), ("cpu", "nanoseconds"), ("gil", "nanoseconds"),
    ]  # fmt: skip
    sums = [sum(values) for values in zip(*(sample.value for sample in found.sample), strict=True)]
    assert sums == [24, WALL, CPU, 60 * MS]
    assert texts[found.default_sample_type] == "cpu"
    assert (found.time_nanos, found.duration_nanos, found.period) == (START_NS, 60 * MS, 10 * MS)


def test_pprof_stacks_are_innermost_first_with_lines_and_labels() -> None:
    found = decode_pprof(export("pprof", record_training().profile(threads=["loader;0"])))
    texts = found.string_table
    functions = {function.id: function for function in found.function}
    places = {location.id: location.line[0] for location in found.location}
    lines = [places[at] for at in found.sample[0].location_id]
    named = [(texts[functions[line.function_id].name], line.line, functions[line.function_id].start_line) for line in lines]  # fmt: skip
    assert named == [("wait", 25, 20), ("run", 15, 10)]
    labels = {texts[label.key]: texts[label.str] or label.num for label in found.sample[0].label}
    assert labels == {
        "thread": "loader;0",
        "thread_id": 101,
        "host": "alpha",
        "pid": 100,
        "rank": 0,
    }


def run_pprof(*args: str) -> str:
    tool = [shutil.which("pprof")] if shutil.which("pprof") else ["go", "tool", "pprof"]
    if shutil.which(tool[0]) is None:
        pytest.skip("no pprof and no go here")
    return subprocess.run([*tool, *args], capture_output=True, text=True, check=True).stdout


def test_pprof_itself_reads_it(tmp_path: Path) -> None:
    path = str(write("pprof", record_training().profile(), tmp_path))
    top = run_pprof("-top", "-unit=ms", "-sample_index=cpu", path)
    assert re.search(r"24ms 28.57% .* 24ms 28.57%  matmul\n", top), top
    assert f"  {HOSTILE}\n" in top and "Duration: 60ms, Total samples = 84ms" in top
    assert "wall/nanoseconds[dflt]" in run_pprof("-raw", path)
    assert re.search(
        r"60ms .*matmul /job/train.py:45\n", run_pprof("-top", "-lines", "-unit=ms", path)
    )
    assert "120ms, 50.00% of 240ms" in run_pprof("-top", "-unit=ms", "-tagfocus=rank=0", path)
