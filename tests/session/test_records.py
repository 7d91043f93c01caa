"""Typed records of a session's JSON files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonde import settings
from sonde.errors import Damaged
from sonde.session import files, records

END = {"state": "FAILED", "reason": None, "t_ns": 5}
ABOUT = {
    "id": "run-1", "session": "s", "number": 1, "name": None, "by": "code", "tags": ["a"],
    "sources": [], "every_ns": 1000, "max_s": 5, "whole": False, "past": False, "asked_ns": 7,
    "starter_pid": 1, "starter_ticks": None, "exports": [],
}  # fmt: skip


def write(folder: Path, values: dict[str, object]) -> str:
    path = str(folder / "run.json")
    files.write_checked(path, values)
    return path


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    about = records.RunAbout.read(write(tmp_path, {**ABOUT, "final": END}))
    assert about.final is not None and (about.final.state, about.final.t_ns) == ("FAILED", 5)
    assert type(about.max_s) is float and about.stop_ns is None
    about.replace(stop_ns=9).write(str(tmp_path / "again.json"))
    again = records.RunAbout.read(str(tmp_path / "again.json"))
    assert again.dump() == {**about.dump(), "stop_ns": 9} and again.max_s == 5.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("number", 10**400), ("number", "1"), ("number", 1.0), ("number", True), ("number", None),
        ("max_s", 10**400), ("max_s", "5"), ("max_s", float("inf")), ("max_s", False),
        ("tags", "a"), ("tags", [1]), ("tags", {"a": 1}), ("name", ["text"]), ("whole", 1),
        ("final", [1]), ("final", {**END, "t_ns": "x"}), ("final", {"state": "FAILED"}),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_damage_that_names_file_and_key(
    tmp_path: Path, key: str, value: object
) -> None:
    with pytest.raises(Damaged, match=rf"run\.json is damaged: {key}: "):
        records.RunAbout.read(write(tmp_path, {**ABOUT, key: value}))


def test_a_key_without_a_default_must_be_there(tmp_path: Path) -> None:
    without = {key: value for key, value in ABOUT.items() if key != "number"}
    with pytest.raises(Damaged, match=r"run\.json is damaged: number is missing"):
        records.RunAbout.read(write(tmp_path, without))


def test_a_key_of_a_later_version_is_left_out(tmp_path: Path) -> None:
    assert "later" not in records.RunAbout.read(write(tmp_path, {**ABOUT, "later": 1})).dump()


def test_what_cannot_be_opened_is_damage_and_what_is_not_there_is_not(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with pytest.raises(Damaged, match=r"run\.json"):
        records.RunAbout.read(str(tmp_path / "run.json"))
    with pytest.raises(FileNotFoundError):
        records.RunAbout.read(str(tmp_path / "none.json"))


@pytest.mark.parametrize("nodes", ([[0, 1, 2]], [[0, 1, 2, 3, 4, "5"]], [[0, 1, 2, 3, 4, 2**64]]))
def test_the_numbers_of_a_result_are_checked(tmp_path: Path, nodes: list[object]) -> None:
    values = {
        "id": "run-1", "session": "s", "name": None, "tags": [], "skipped": 0, "host": "h",
        "pid": 1, "rank": None, "begin_ns": 1, "end_ns": 2, "wall_offset_ns": 3, "reason": None,
        "frames": [["f", "a.py", 1, 2]], "nodes": [[-1, 0, 1, 2, 3, 4]], "ours": [0, 0, 0, 0],
    }  # fmt: skip
    found = records.RunResult.load(values, "result.json")
    assert found.frames == [("f", "a.py", 1, 2)] and found.nodes == [(-1, 0, 1, 2, 3, 4)]
    with pytest.raises(Damaged, match=r"result\.json is damaged: nodes: "):
        records.RunResult.load({**values, "nodes": nodes}, "result.json")


def test_settings_have_the_type_of_their_defaults(tmp_path: Path) -> None:
    path = str(tmp_path / "config.json")
    files.write_checked(path, {"host.every": 2, "snapshot.keep": 5.0, "source.gc": False})
    values = records.read_config(path)
    assert (values["host.every"], values["snapshot.keep"], values["source.gc"]) == (2.0, 5, False)
    assert type(values["host.every"]) is float and type(values["snapshot.keep"]) is int
    assert values["archive.every"] == settings.list_keys()["archive.every"].default
    for bad in ({"host.every": "1"}, {"archive": 1}, {"ring.bytes": [1]}, {"host.every": 10**400}):
        files.write_checked(path, bad)
        with pytest.raises(Damaged, match=r"config\.json is damaged: "):
            records.read_config(path)
