"""The flame graph picture: XML, and what its script does in a real browser."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.browser import drive
from support.handmade_stacks import (
    FakeRecording,
    export,
    record_training,
    write,
)


def test_the_picture_is_xml_whose_widths_are_the_shares() -> None:
    root = ElementTree.fromstring(export("svg", record_training().profile()))
    boxes = {}
    for group in root.iter("{http://www.w3.org/2000/svg}g"):
        if group.get("class") == "f":
            title, rect, _ = group
            boxes.setdefault(title.text.partition(" (")[0], []).append(float(rect.get("width")))
    assert boxes["all\n240 ms, 100.00 %; itself 0 ns"] == [1180.0]
    assert sum(boxes["matmul"]) == pytest.approx(1180 * 60 / 240, abs=0.1)
    assert sum(boxes["wait"]) == pytest.approx(1180 / 2, abs=0.1)


def test_an_import_is_one_box_for_each_module_and_we_have_none() -> None:
    find = ("_find_and_load", "<frozen importlib._bootstrap>", 1176, 1170)
    load = ("exec_module", "<frozen importlib._bootstrap_external>", 940, 930)
    numpy = ("<module>", "/v/lib/python3.12/site-packages/numpy/__init__.py", 7, 1)
    recording = FakeRecording()
    ours = ("Recorder.start", "/v/lib/python3.12/site-packages/sonde/job/recorder.py", 9, 1)
    recording.see([("main", "/job/app.py", 5, 1), find, load, numpy, ours, find], 10)
    root = ElementTree.fromstring(export("svg", recording.profile()))
    titles = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
    names = [title.partition(" (")[0].partition("\n")[0] for title in titles[3:]]
    assert names == ["main", "import numpy"]  # what we import is not the program's


def test_the_picture_searches_and_zooms(tmp_path: Path) -> None:
    path = write("svg", record_training().profile(), tmp_path)
    said = drive(path, """
        const find = (id) => document.getElementById(id);
        const boxes = [...document.querySelectorAll(".f")];
        const shown = () => boxes.filter((g) => !g.classList.contains("hide")).length;
        const of = (name) => boxes.find((g) => g.textContent.startsWith(name + " ("));
        window.prompt = () => "matmul|train ";
        find("search").dispatchEvent(new MouseEvent("click"));
        const matched = find("matched").textContent;
        find("search").dispatchEvent(new MouseEvent("click"));
        const before = shown();
        of("train").dispatchEvent(new MouseEvent("click"));
        const zoomed = shown(), width = of("train").querySelector("rect").getAttribute("width");
        find("reset").dispatchEvent(new MouseEvent("click"));
        return { matched, cleared: find("matched").textContent, before, zoomed, width, after: shown() };
    """)  # fmt: skip
    assert said["errors"] == []
    assert said["matched"] == "matched 33.33 %" and said["cleared"].strip() == ""
    assert said["width"] == "1180.00" and said["zoomed"] < said["before"] == said["after"]
