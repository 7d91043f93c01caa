"""SQL over recordings: DuckDB on Arrow, locked down, loading only the tables a query names."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise

import duckdb
import pyarrow as pa

from sonde import about, catalog, config
from sonde.errors import Damaged, QueryError
from sonde.record import Schema
from sonde.rows import SessionTable, arrow_schema, open_tables, widen
from sonde.session import Session
from sonde.target import find_sessions

MEMORY = "2GiB"
TIMEOUT_S = 300.0
_CATALOG = "memory"  # what DuckDB calls the database in memory
_TRIES = 3  # the archive may be compacted under a query; then its files have new names
_ALLOWED = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)


def open_recording(target: int | str | Sequence[int | str]) -> Recording:
    """The recording that a target names; see target.find_sessions."""
    words = [target] if isinstance(target, (int, str)) else list(target)
    return Recording(find_sessions(",".join(str(word) for word in words), config.find_root()))


class Recording:
    """What was recorded, of one process or of many, live or ended."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = list(sessions)

    @property
    def meta(self) -> dict[str, object]:
        """Who and where: meta.json of the (first) session."""
        return self.sessions[0].meta

    def tables(self) -> list[Schema]:
        """Every table that can be asked, with its columns as a query sees them."""
        parts = [open_tables(session) for session in self.sessions]
        found = {schema.table: schema for schema in catalog.list_recorded()}
        found |= {name: table.schema for part in parts for name, table in part.items()}
        schemas = [widen(schema) for schema in found.values()]
        return sorted([*schemas, *(view.schema for view in about.VIEWS)], key=lambda s: s.table)

    def query(self, sql: str, *, timeout_s: float = TIMEOUT_S, memory: str = MEMORY) -> pa.Table:
        """Run one SELECT and return its rows. Reads only: no file, no network, no settings."""
        for _ in range(_TRIES - 1):
            try:
                return self._query_once(sql, timeout_s, memory)
            except (FileNotFoundError, duckdb.Error) as error:
                if not _is_vanished(error):
                    raise _explain(error, self) from None
        try:
            return self._query_once(sql, timeout_s, memory)
        except (FileNotFoundError, duckdb.Error) as error:
            raise _explain(error, self) from None

    def _query_once(self, sql: str, timeout_s: float, memory: str) -> pa.Table:
        with _connect(memory) as connection:
            _require_select(connection, sql)
            streams = self._register(connection)
            connection.execute("SET lock_configuration = true")
            try:
                return _run(connection, qualify(sql), timeout_s)
            except duckdb.Error:
                # What went wrong while a table was being read is ours to explain.
                for stream in streams:
                    if stream.error is not None:
                        raise stream.error from None
                raise

    def _register(self, connection: duckdb.DuckDBPyConnection) -> list[_Stream]:
        parts: dict[str, list[SessionTable]] = {}
        for session in self.sessions:
            for name, table in open_tables(session).items():
                parts.setdefault(name, []).append(table)
        for schema in catalog.list_recorded():
            # Nothing recorded is an empty table: a query need not know what is on.
            empty = SessionTable(self.sessions[0], schema, None)
            parts.setdefault(schema.table, [empty])
        streams = []
        for name, tables in parts.items():
            stream = _Stream(_widest(tables), lambda tables=tables: _read_live(tables))  # type: ignore[misc]
            streams.append(stream)
            relation = connection.from_arrow(stream)
            for table in tables:
                archived = table.open_archive()
                if archived is not None:
                    relation = relation.union(_align(connection, archived, stream.schema))
            if tables[0].schema.scope == "host" and len(tables) > 1:
                relation = _once_per_host(relation, tables[0].schema)
            _create_view(connection, name, relation)
        for view in about.VIEWS:
            stream = _Stream(about.schema_of(view), lambda view=view: view.read(self.sessions))  # type: ignore[misc]
            streams.append(stream)
            _create_view(connection, view.schema.table, connection.from_arrow(stream))
        connection.execute(f"USE {_CATALOG}.main")
        return streams


def _widest(tables: Sequence[SessionTable]) -> pa.Schema:
    """The columns of a table across sessions: columns are only ever appended."""
    schemas = [arrow_schema(table.schema) for table in tables]
    return max(schemas, key=len)


def _read_live(tables: Sequence[SessionTable]) -> pa.Table:
    wanted = _widest(tables)
    rows = [table.read_live() for table in tables]
    plain = [part.cast(_only(wanted, part.schema)) if len(tables) > 1 else part for part in rows]
    whole = pa.concat_tables(plain, promote_options="default")
    return whole.select(wanted.names) if set(wanted.names) <= set(whole.column_names) else whole


def _only(wanted: pa.Schema, have: pa.Schema) -> pa.Schema:
    return pa.schema([wanted.field(name) for name in have.names])


def _align(
    connection: duckdb.DuckDBPyConnection, archived: object, wanted: pa.Schema
) -> duckdb.DuckDBPyRelation:
    relation = connection.from_arrow(archived)
    if relation.columns == wanted.names:
        return relation
    named = (
        f'"{name}"' if name in relation.columns else f'NULL AS "{name}"' for name in wanted.names
    )
    return relation.project(", ".join(named))


def _once_per_host(relation: duckdb.DuckDBPyRelation, schema: Schema) -> duckdb.DuckDBPyRelation:
    """Each session of a host holds the same rows about the machine; only their `ts` may differ,
    by the microsecond between the sessions' clock anchors."""
    own = ", ".join(f'"{field.name}"' for field in schema.fields)
    once = relation.query("rows", f"SELECT DISTINCT ON (host, {own}) * FROM rows")
    assert once is not None  # None is for statements without rows
    return once


class _Stream:
    """A table that is read when a query scans it, once, and never before."""

    def __init__(self, schema: pa.Schema, read: Callable[[], pa.Table]) -> None:
        self.schema, self._read = schema, read
        self._rows: pa.Table | None = None
        self.error: Exception | None = None

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        if self._rows is None:
            try:
                self._rows = self._read().cast(self.schema)
            except (Damaged, OSError, ValueError) as error:
                self.error = error
                raise
        return self._rows.__arrow_c_stream__(requested_schema)


def _connect(memory: str) -> duckdb.DuckDBPyConnection:
    # Without a temp folder a query that needs too much memory ends with a clear error.
    return duckdb.connect(
        ":memory:",
        config={
            "enable_external_access": "false",
            "python_enable_replacements": "false",
            "autoload_known_extensions": "false",
            "autoinstall_known_extensions": "false",
            "memory_limit": memory,
            "temp_directory": "",
        },
    )


def _create_view(
    connection: duckdb.DuckDBPyConnection, table: str, relation: duckdb.DuckDBPyRelation
) -> None:
    schema, _, name = table.partition(".")
    connection.execute(f'CREATE SCHEMA IF NOT EXISTS {_CATALOG}."{schema}"')
    connection.execute(f'USE {_CATALOG}."{schema}"')
    relation.create_view(name)


def qualify(sql: str) -> str:
    """`system.cpu` as `memory.system.cpu`: DuckDB has a catalog `system` of its own, and finds the
    short form ambiguous. Strings and comments are left alone."""
    starts = [start for start, _kind in duckdb.tokenize(sql)] + [len(sql)]
    tokens = [sql[start:end] for start, end in pairwise(starts)]
    done = [sql[: starts[0]]]
    for index, token in enumerate(tokens):
        word = _first_word(token)
        before = tokens[index - 1].strip() if index else ""
        short = word.strip('"').lower() == "system" and not before.endswith(".")
        dotted = token[len(word) :].strip().startswith(".") or (
            index + 1 < len(tokens) and tokens[index + 1].startswith(".")
        )
        done.append(f"{_CATALOG}.{token}" if short and dotted else token)
    return "".join(done)


def _first_word(token: str) -> str:
    found = re.match(r'"[^"]*"|\w+', token)
    return found.group() if found else ""


def _require_select(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise QueryError(f"one SELECT at a time, please; this is {len(statements)} statements")
    if statements[0].type not in _ALLOWED:
        kind = statements[0].type.name
        raise QueryError(f"only SELECT can be asked of a recording, not {kind}; nothing is changed")


def _run(connection: duckdb.DuckDBPyConnection, sql: str, timeout_s: float) -> pa.Table:
    """Run in a thread of its own, so that Ctrl-C and the time limit reach the engine."""
    answer: list[pa.Table] = []
    failure: list[BaseException] = []
    # An event, not join(): a join that Ctrl-C interrupts takes the thread for ended (CPython 3.11).
    done = threading.Event()

    def work() -> None:
        try:
            answer.append(connection.sql(sql).to_arrow_table())
        except BaseException as error:  # handed to the caller, which raises it
            failure.append(error)
        finally:
            done.set()

    threading.Thread(target=work, name="sonde-query", daemon=True).start()
    try:
        in_time = done.wait(timeout_s)
    finally:
        if not done.is_set():
            connection.interrupt()
            done.wait()
    if not in_time:
        raise QueryError(f"stopped after {timeout_s:g} s; narrow the query or raise --timeout")
    if failure:
        raise failure[0]
    return answer[0]


# ---- errors a person can act on ------------------------------------------------------------------


def _is_vanished(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError) or "No such file" in str(error)


def _explain(error: Exception, recording: Recording) -> Exception:
    if not isinstance(error, duckdb.Error):
        return Damaged(f"{recording.sessions[0].folder} changed while it was read: {error}")
    message = str(error).strip()
    hint = _hint(message, recording)
    return QueryError(message + (f"\n{hint}" if hint else ""))


def _hint(message: str, recording: Recording) -> str:
    missing = re.search(r"Table with name \"?([^\s\"!]+)", message)
    if missing:
        names = [schema.table for schema in recording.tables()]
        near = list(_nearest(missing.group(1), names))
        return "tables here: " + ", ".join(near or names)
    column = re.search(r'Referenced column "([^"]+)"', message)
    if column:
        names = sorted({field.name for schema in recording.tables() for field in schema.fields})
        near = get_close_matches(column.group(1), names, 3)
        return f"nearest columns: {', '.join(near)}" if near else ""
    if "Permission Error" in message or "disabled" in message:
        return "SQL here reads the recording and nothing else: no files, no network, no settings"
    return ""


def _nearest(name: str, tables: Sequence[str]) -> Iterator[str]:
    bare = {table.partition(".")[2]: table for table in tables}
    for near in get_close_matches(name.rpartition(".")[2], bare, 3, 0.5):
        yield bare[near]
