"""speedscope: the published schema, and the program itself."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from support.browser import dump, find_outside
from support.handmade_stacks import (
    CPU,
    MS,
    WALL,
    FakeRecording,
    export,
    record_training,
    write,
)


def test_speedscope_has_a_profile_per_thread_whose_weights_add_up() -> None:
    for weight, total in (("wall", WALL), ("cpu", CPU)):
        document = json.loads(export("speedscope", record_training().profile(weight=weight)))
        assert sum(sum(part["weights"]) for part in document["profiles"]) == total
        for part in document["profiles"]:
            assert len(part["samples"]) == len(part["weights"])
            assert part["endValue"] - part["startValue"] == sum(part["weights"])
            assert all(at < len(document["shared"]["frames"]) for s in part["samples"] for at in s)
    assert [part["name"] for part in document["profiles"]] == [
        "train.py (rank 0, alpha pid 100): MainThread (100)",
        "train.py (rank 1, beta pid 100): MainThread (100)",
    ]  # the loader used no CPU


def test_speedscope_keeps_the_order_of_time_and_joins_equal_neighbours() -> None:
    recording = FakeRecording().see("a|b", 10).see("a|b", 20).see("a|c", 30).see("a|b", 40)
    document = json.loads(export("speedscope", recording.profile()))
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    (part,) = document["profiles"]
    named = ["|".join(frames[at] for at in sample) for sample in part["samples"]]
    assert list(zip(named, part["weights"], strict=True)) == [
        ("a|b", 20 * MS), ("a|c", 10 * MS), ("a|b", 10 * MS),
    ]  # fmt: skip


def test_speedscope_fits_the_published_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    folder = find_outside("SPEEDSCOPE", "the unpacked npm package speedscope")
    schema = json.loads((folder / "dist/release/file-format-schema.json").read_text())
    jsonschema.validate(json.loads(export("speedscope", record_training().profile())), schema)


@pytest.mark.parametrize(
    ("name", "matmul", "where"),
    [("speedscope", "30.00ms (50%)", ""), ("pprof", "60.00ms (25%)", ""),
     ("collapsed", "60,000,000 (25%)", " (/job/train.py:40)")],
)  # fmt: skip
def test_speedscope_itself_shows(name: str, matmul: str, where: str, tmp_path: Path) -> None:
    folder = find_outside("SPEEDSCOPE", "the unpacked npm package speedscope")
    path = write(name, record_training().profile(), tmp_path)
    # As its own command line does it.
    script = tmp_path / "load.js"
    packed = base64.b64encode(path.read_bytes()).decode()
    script.write_text(f'speedscope.loadFileFromBase64("{path.name}", "{packed}")')
    page = (folder / "dist/release/index.html").as_uri()
    shown = dump(f"{page}#localProfilePath={script}&view=sandwich", webgl=True)
    text = re.sub(r"(<[^>]*>)+", "\n", shown)
    assert f"\n{matmul}\n{matmul}\nmatmul{where}\n" in text, text[-2000:]
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in text and "<img src=x" not in shown
