"""SQL statements: which are allowed, and how they name our tables."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import pairwise

import duckdb

from sonde.errors import QueryError

CATALOG = "memory"  # DuckDB's name for the database in memory
_SYSTEM = re.compile(r'(?:system|"system")\s*\.\s*"?(\w+)', re.IGNORECASE)
# For SQL without quoted names, $-strings, e-strings and long comments, which only the engine's
# tokenizer understands; it takes as long as many queries.
_PLAIN = re.compile(r"'[^']*'|--[^\n]*|(?<!\w)system\s*\.\s*(\w+)", re.IGNORECASE)
_HARD = re.compile(r"[\"$]|/\*|\be'", re.IGNORECASE)
_ALLOWED = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)


def qualify(sql: str, names: Collection[str]) -> str:
    """Write `system.cpu` as `memory.system.cpu`: DuckDB has its own catalog `system` and finds the
    short form ambiguous. Strings, comments and everything else stay as they are."""
    if not _HARD.search(sql):
        return _PLAIN.sub(lambda match: _qualify_one(match, names), sql)
    raw = sql.encode()  # the tokenizer counts in bytes
    starts = [start for start, _kind in duckdb.tokenize(sql)] + [len(raw)]
    tokens = [raw[start:end].decode() for start, end in pairwise(starts)]
    done = [raw[: starts[0]].decode()]
    for index, token in enumerate(tokens):
        before = done[-1].rstrip()
        rest = "".join(tokens[index : index + 3])
        match = _SYSTEM.match(rest)
        ours = match is not None and match[1].lower() in names and not before.endswith(".")
        done.append(f"{CATALOG}.{token}" if ours else token)
    return "".join(done)


def _qualify_one(match: re.Match[str], names: Collection[str]) -> str:
    is_ours = match[1] is not None and match[1].lower() in names
    has_catalog = match.string[: match.start()].rstrip().endswith(".")
    return f"{CATALOG}.{match[0]}" if is_ours and not has_catalog else match[0]


def require_select(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raise an error for anything but one statement that only reads."""
    statements = connection.extract_statements(sql)
    kind = _find_kind(statements[0]) if len(statements) == 1 else None
    if kind in _ALLOWED:
        return
    if re.match(r"\s*(pivot|unpivot)\b", sql, re.IGNORECASE):
        # DuckDB turns it into several statements, one of which creates a type.
        raise QueryError("name the values of PIVOT: PIVOT … ON column IN (value, …)")
    if len(statements) != 1:
        raise QueryError(f"give one SELECT at a time; these are {len(statements)} statements")
    instead = "" if kind is None else f", not {kind.name}"
    raise QueryError(f"a recording can only be read: use SELECT{instead}")


def _find_kind(statement: duckdb.Statement) -> duckdb.StatementType | None:
    try:
        return statement.type
    except ValueError:  # DuckDB's Python half does not know every kind that its parser does
        return None
