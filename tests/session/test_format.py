"""Folders written by earlier versions stay readable for ever."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import sonde
from sonde import _core
from sonde.errors import Newer
from sonde.session import Session
from sonde.session.files import read_checked, write_checked
from support.places import DOCS, GOLDEN


def written() -> list[tuple[object, ...]]:
    spec = importlib.util.spec_from_file_location("golden_make", GOLDEN / "make.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.rows()


@pytest.mark.parametrize("name", ["v1-rings", "v1-sealed"])
def test_every_value_of_a_version_1_folder_is_read(name: str) -> None:
    recording = sonde.open(str(GOLDEN / name))
    rows = recording.query(
        "SELECT * EXCLUDE (t_ns, ts, host, pid, rank) FROM job.sample ORDER BY t_ns"
    )
    assert [tuple(row.values()) for row in rows.to_pylist()] == written()
    (loss,) = recording.query(
        "SELECT * FROM sonde.loss WHERE table_name = 'job.sample'"
    ).to_pylist()
    assert loss["written"] == loss["kept"] == 3
    sources = recording.query("SELECT source, state FROM sonde.source").to_pylist()
    assert {"source": "gc", "state": "off"} in sources


def test_a_sealed_folder_keeps_its_end_on_every_machine() -> None:
    assert Session(str(GOLDEN / "v1-sealed")).find_state() == "ended"
    assert Session(str(GOLDEN / "v1-rings")).find_state() == "unknown"  # recorded elsewhere


def test_a_newer_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    meta = read_checked(str(GOLDEN / "v1-rings" / "meta.json"))
    write_checked(str(folder / "meta.json"), {**meta, "format": 99})
    with pytest.raises(Newer, match="newer sonde; update"):
        sonde.open(str(folder))


def test_the_format_version_is_the_documented_one() -> None:
    text = (DOCS / "format.md").read_text()
    assert f"version {_core.FORMAT_VERSION}" in text
