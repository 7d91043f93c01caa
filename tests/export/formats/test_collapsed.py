"""Folded stacks: lines that add up, and flamegraph.pl."""

from __future__ import annotations

import subprocess
from pathlib import Path
from xml.etree import ElementTree

from support.browser import find_outside
from support.handmade_stacks import (
    HOSTILE,
    WALL,
    FakeRecording,
    export,
    record_training,
    write,
)


def test_folded_stacks_add_up_and_keep_processes_and_threads_apart() -> None:
    lines = export("collapsed", record_training().profile()).decode().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == WALL
    assert (
        "train.py (rank 0, alpha pid 100);MainThread (100);main (/job/train.py:10);"
        "train (/job/train.py:20);forward (/job/train.py:30);matmul (/job/train.py:40) 20000000"
    ) in lines


def test_folded_stacks_of_one_process_begin_with_the_thread() -> None:
    recording = FakeRecording().name(100, "Main").see("a|b;c\nd", 10)
    text = export("collapsed", recording.profile()).decode()
    assert text == "Main (100);a (/job/train.py:10);b:c\\nd (/job/train.py:20) 10000000\n"


def test_flamegraph_pl_draws_them(tmp_path: Path) -> None:
    script = find_outside("FLAMEGRAPH_PL", "Brendan Gregg's flamegraph.pl")
    path = write("collapsed", record_training().profile(), tmp_path)
    done = subprocess.run(
        ["perl", str(script), str(path)], capture_output=True, text=True, check=True
    )
    titles = [title.text for title in ElementTree.fromstring(done.stdout).iter("{http://www.w3.org/2000/svg}title")]  # fmt: skip
    assert "all (240,000,000 samples, 100%)" in titles
    assert "train (/job/train.py:20) (40,000,000 samples, 16.67%)" in titles
    assert f"{HOSTILE} (/job/train.py:20) (10,000,000 samples, 4.17%)" in titles
    assert done.stderr == ""
