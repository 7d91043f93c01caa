"""What went wrong with a query, in words that a person can act on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches

import duckdb

from sonde.errors import Damaged, QueryError
from sonde.session.schema import Schema
from sonde.store import listing
from sonde.store.engine import is_too_large, too_large

_MOST = 4  # tables that are named


def explain_error(
    error: Exception, folder: str, list_tables: Callable[[], Sequence[Schema]], memory: str
) -> Exception:
    """Return an error of our own; `list_tables` tells what could have been asked."""
    if is_too_large(error):
        return too_large(memory)
    if not isinstance(error, duckdb.Error):
        reason = " ".join(str(error).split())
        return Damaged(f"{folder} cannot be read: {reason}")
    message = str(error).strip()
    hint = _hint(message, list_tables)
    return QueryError(message + (f"\n{hint}" if hint else ""))


def _hint(message: str, list_tables: Callable[[], Sequence[Schema]]) -> str:
    missing = re.search(r"Table with name \"?([^\s\"!]+)", message)
    if missing:
        names = [schema.table for schema in list_tables()]
        near = listing.find_nearest(missing.group(1), names)
        return "tables here: " + ", ".join(near or names)
    column = re.search(r'Referenced column "([^"]+)"', message)
    if column:
        return _find_column(column.group(1), list_tables())
    if "Permission Error" in message or "disabled" in message:
        return "SQL here reads the recording and nothing else: no files, no network, no settings"
    return ""


def _find_column(name: str, tables: Sequence[Schema]) -> str:
    """Return which tables have a column of this name, else the nearest names."""
    having = [schema.table for schema in tables if name in {field.name for field in schema.fields}]
    if having:
        return f"{name} is a column of {', '.join(having[:_MOST])}"
    known = sorted({field.name for schema in tables for field in schema.fields})
    close = get_close_matches(name, known, 3)
    return f"nearest columns: {', '.join(close)}" if close else ""
