"""Row classes become schemas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import pytest

import sonde
from sonde.errors import SchemaError
from sonde.session.schema import Field, Schema, load_schema, make_schema, name_table


@dataclass
class Batch:
    """One batch.

    More words."""

    step: int
    loss: float | None
    name: Optional[str]  # noqa: UP045
    done: bool
    small: sonde.u8 = sonde.column("a small one", "items")


def test_a_dataclass_becomes_a_schema_with_a_time_in_front() -> None:
    schema = make_schema(Batch, "job.batch")
    assert schema.timed and schema.doc == "One batch."
    assert [(f.name, f.kind, f.optional) for f in schema.fields] == [
        ("t_ns", "i64", False), ("step", "i64", False), ("loss", "f64", True),
        ("name", "text", True), ("done", "bool", False), ("small", "u8", False),
    ]  # fmt: skip
    assert (schema.fields[-1].doc, schema.fields[-1].unit) == ("a small one", "items")
    assert schema.kinds == "qqdt?B" and schema.optional == "001100"


def test_live_annotations_work_as_well_as_texts() -> None:
    row = type(
        "Row", (), {"__annotations__": {"a": sonde.i32, "b": sonde.text | None, "c": int | None}}
    )
    schema = make_schema(row, "job.row")
    assert [(f.kind, f.optional) for f in schema.fields[1:]] == [
        ("i32", False), ("text", True), ("i64", True),
    ]  # fmt: skip


def test_a_class_whose_annotations_are_computed_when_asked_for_has_columns() -> None:
    names: dict[str, type] = {}
    code = "class First:\n    a: int\nclass Row(First):\n    b: str | None\nclass Same(Row): pass"
    exec(compile(code, "<rows>", "exec", dont_inherit=True), names)
    schema = make_schema(names["Same"], "job.row")
    assert [(f.name, f.kind, f.optional) for f in schema.fields[1:]] == [
        ("a", "i64", False), ("b", "text", True),
    ]  # fmt: skip


def test_a_row_that_brings_its_own_time_keeps_it() -> None:
    row = type("Row", (), {"__annotations__": {"t_ns": "i64", "x": "f64"}})
    schema = make_schema(row, "job.row")
    assert not schema.timed and [f.name for f in schema.fields] == ["t_ns", "x"]


def test_a_schema_survives_its_own_file_format() -> None:
    schema = make_schema(Batch, "job.batch")
    again = load_schema(schema.dump())
    assert again.dump() == schema.dump()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "no columns"),
        ({"x": "complex"}, "not a column kind"),
        ({"host": "str"}, "adds host to every table"),
    ],
)
def test_a_row_that_cannot_be_a_table_is_refused(columns: dict[str, str], said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        make_schema(type("Row", (), {"__annotations__": columns}), "job.row")


@pytest.mark.parametrize("name", ["batch", "Job.Batch", "job.ba tch", "job.batch;", "../x.y", ""])
def test_a_name_that_is_no_table_name_is_refused(name: str) -> None:
    with pytest.raises(SchemaError):
        Schema(name, [Field("a", "i64", False, "", "")])


def test_class_names_become_table_names() -> None:
    assert name_table(type("GcPause", (), {}), "python") == "python.gc_pause"
