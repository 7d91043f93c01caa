"""SHOW TABLES and DESCRIBE: what a recording has, answered from its schemas.

DuckDB would list its own idea of them: without units and meaning, and only those of one schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import pyarrow as pa

from sonde.errors import QueryError
from sonde.session.schema import Schema

_SHOW = re.compile(r"\s*show\s+(?:all\s+)?tables\s*;?\s*", re.IGNORECASE)
_DESCRIBE = re.compile(r"\s*(?:describe|desc)\s+(?:table\s+)?([\w.\"]+)\s*;?\s*", re.IGNORECASE)


def is_listing(sql: str) -> bool:
    """Tell whether a statement asks for the tables, or for the columns of one."""
    return _SHOW.fullmatch(sql) is not None or _DESCRIBE.fullmatch(sql) is not None


def answer(sql: str, schemas: Sequence[Schema]) -> pa.Table:
    """Return the rows that such a statement asks for."""
    described = _DESCRIBE.fullmatch(sql)
    if described is None:
        names = ("table", "columns", "meaning")
        return _make(names, [(one.table, len(one.fields), one.doc) for one in schemas])
    name = described[1].replace('"', "").lower()
    found = [one for one in schemas if name in (one.table, one.table.partition(".")[2])]
    if not found:
        near = find_nearest(name, [one.table for one in schemas])
        raise QueryError(
            f"there is no table {name}; " + (f"did you mean {' or '.join(near)}?" if near else
            "SHOW TABLES lists all")
        )  # fmt: skip
    rows = [
        (one.table, field.name, field.kind + (" or NULL" if field.optional else ""), field.unit,
         field.doc)
        for one in found for field in one.fields
    ]  # fmt: skip
    return _make(("table", "column_name", "column_type", "unit", "meaning"), rows)


def _make(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> pa.Table:
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def find_nearest(name: str, tables: Sequence[str]) -> list[str]:
    """Return the tables whose names are most like this one, with or without its schema."""
    return list(_list_nearest(name, tables))


def _list_nearest(name: str, tables: Sequence[str]) -> Iterator[str]:
    bare = {table.partition(".")[2]: table for table in tables}
    for near in get_close_matches(name.rpartition(".")[2], bare, 3, 0.5):
        yield bare[near]
