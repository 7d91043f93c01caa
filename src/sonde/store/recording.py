"""Recordings, and SQL over them: DuckDB on Arrow, locked down, reading only the named tables."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import duckdb
import pyarrow as pa

from sonde import environ
from sonde.session import Session
from sonde.session.missing_names import describe_missing_names
from sonde.session.schema import Schema
from sonde.session.target import add_children, add_ranks, find_sessions
from sonde.store import archive, catalog, listing
from sonde.store.combined import CombinedTable, LazyTable, create_view, raise_own_error
from sonde.store.engine import abandoned, connect, iter_pieces, run
from sonde.store.host_copies import leave_out_copies
from sonde.store.place import is_place
from sonde.store.query_errors import explain_error
from sonde.store.rows import SessionTable, open_tables, widen
from sonde.store.shared_session import add_shared_children, find_shared
from sonde.store.shared_tables import SharedTables, find_shared_tables
from sonde.store.statement import CATALOG, qualify, require_select
from sonde.store.view import View

MEMORY = "2GiB"
TIMEOUT_S = 300.0
_LISTING = ("show", "describe", "pragma", "information_schema", "duckdb_", "sqlite_", "pg_")
_UNKNOWN_NAMES = (duckdb.CatalogException, duckdb.BinderException)
TRIES = 3  # the archive may be merged during a query, and then its files have new names
_SHOWN = 20  # processes in a notebook
F = TypeVar("F", bound="FrozenRecording")
_GONE = ("No such file", "No files found", "does not exist", "NO_SUCH_KEY", "RESOURCE_NOT_FOUND")
FAILURES = (OSError, MemoryError, pa.ArrowException, duckdb.Error)


def open_recording(target: int | str | Sequence[int | str], *, warns: bool = False) -> Recording:
    """Return the recording that a target names; see target.find_sessions. One that `warns` says
    with its first query if names are missing."""
    words = [target] if isinstance(target, (int, str)) else list(target)
    found = [session for word in words for session in find_targets(str(word))]
    return Recording(list({session.folder: session for session in found}.values()), warns=warns)


def find_targets(target: str) -> Sequence[Session]:
    """Return the sessions that a target names, here or in a shared place."""
    return find_shared(target) if is_place(target) else find_sessions(target, environ.find_root())


class Recording:
    """What one process or many left behind, live or ended."""

    def __init__(self, sessions: Sequence[Session], *, warns: bool = False) -> None:
        self.sessions = list(sessions)
        self._shared = find_shared_tables(self.sessions)
        self._warns = warns  # once, when names are missing

    @property
    def meta(self) -> dict[str, object]:
        """The contents of meta.json of the first session: who and where."""
        return self.sessions[0].meta.dump()

    def __repr__(self) -> str:
        pids = ", ".join(str(one.pid) for one in self.sessions[:_SHOWN])
        return f"<recording of pid {pids}: .query(sql) asks it, .tables() lists its tables>"

    def _repr_html_(self) -> str:
        """Return the processes as a table, for notebooks."""
        from sonde.store.notebook import show_processes  # only here: few programs are notebooks

        return show_processes(self.sessions, _SHOWN)

    def tables(self) -> list[Schema]:
        """Return every table that can be queried, with its columns as a query sees them."""
        if self._shared is not None:
            return self._shared.list_schemas()
        found = {name: tables[-1].schema for name, tables in self._list_parts().items()}
        schemas = [widen(schema) for schema in found.values()]
        return sorted(
            [*schemas, *(view.schema for view in catalog.list_views())], key=lambda s: s.table
        )

    def query(self, sql: str, *, timeout_s: float = TIMEOUT_S, memory: str = MEMORY) -> pa.Table:
        """Run one SELECT and return its rows. It can read the recording and nothing else."""
        self._warn()
        if listing.is_listing(sql):
            return listing.answer(sql, self.tables())
        for _ in range(TRIES - 1):
            try:
                return self._query_named(sql, timeout_s, memory)
            except FAILURES as error:
                if not self._is_vanished(error):
                    raise self._explain(error, memory) from None
        try:
            return self._query_named(sql, timeout_s, memory)
        except FAILURES as error:
            raise self._explain(error, memory) from None

    def query_each(self, sql: str) -> pa.Table:
        """Run one SELECT whose every row is about one process, so that each host of a cluster could
        answer for its own."""
        return self.query(sql)

    def _query_named(self, sql: str, timeout_s: float, memory: str) -> pa.Table:
        """Run a query with the tables that its text names: to register all takes longer than most
        queries. Only where a name is unknown are all there: DuckDB then suggests one of them."""
        text = sql.lower()
        try:
            return self._query_once(sql, text, timeout_s, memory)
        except _UNKNOWN_NAMES:
            return self._query_once(sql, _name_all(text), timeout_s, memory)

    def stream(
        self,
        sql: str,
        *,
        given: Mapping[str, pa.Table] | None = None,
        timeout_s: float = TIMEOUT_S,
        memory: str = MEMORY,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one SELECT in pieces, for results larger than memory. `given` are more
        tables that the query may name. `timeout_s` applies to each piece."""
        self._warn()
        text = sql.lower()
        for tried in range(TRIES):
            begun = False
            try:
                for piece in self._stream_once(sql, text, given or {}, timeout_s, memory):
                    begun = True  # rows that were yielded cannot be taken back
                    yield piece
                return
            except FAILURES as error:
                if isinstance(error, _UNKNOWN_NAMES) and tried == 0:
                    text = _name_all(text)  # as in a query
                    continue
                if begun or not self._is_vanished(error) or tried == TRIES - 1:
                    raise self._explain(error, memory) from None

    def _stream_once(
        self,
        sql: str,
        text: str,
        given: Mapping[str, pa.Table],
        timeout_s: float,
        memory: str,
    ) -> Iterator[pa.RecordBatch]:
        with self._connect(sql, text, given, memory) as connection:
            yield from iter_pieces(connection, self._qualify(sql), timeout_s)

    def _is_vanished(self, error: Exception) -> bool:
        """Tell whether files have been replaced since they were listed; they are listed again."""
        is_gone = isinstance(error, FileNotFoundError) or any(word in str(error) for word in _GONE)
        if is_gone and self._shared is not None:
            self._shared.place.forget()
        return is_gone

    def _explain(self, error: Exception, memory: str) -> Exception:
        return explain_error(error, self.sessions[0].folder, self.tables, memory)

    def _warn(self) -> None:
        for line in describe_missing_names(self.sessions).values() if self._warns else ():
            self._warns = False
            warnings.warn(line, stacklevel=3)

    def add_relatives(self) -> Recording:
        """Return the recording with the children of its processes, and ranks they wait for."""
        if self._shared is None:
            return Recording(add_ranks(add_children(self.sessions)))
        return Recording(add_shared_children(self._shared.sessions))

    def freeze(self, text: str = "") -> FrozenRecording:
        """Return the recording as it is now, for many queries: its tables are opened once. `text`
        contains the names of those that will be queried."""
        return FrozenRecording(self.sessions, text)

    def _query_once(self, sql: str, text: str, timeout_s: float, memory: str) -> pa.Table:
        with self._connect(sql, text, {}, memory) as connection:
            return run(connection, self._qualify(sql), timeout_s, memory)

    @contextmanager
    def _connect(
        self, sql: str, text: str, given: Mapping[str, pa.Table], memory: str
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open a database for one query, with the tables that `text` names."""
        connection = connect(memory, self._list_folders())
        try:
            require_select(connection, sql)
            streams = self._register(connection, text)
            for name, rows in given.items():
                connection.register(name, rows)
            connection.execute("SET lock_configuration = true")
            with raise_own_error(streams):
                yield connection
        finally:
            if connection not in abandoned:
                connection.close()

    def _qualify(self, sql: str) -> str:
        # To find the names opens every table of every session.
        return qualify(sql, self._names("system")) if "system" in sql.lower() else sql

    def _names(self, schema: str) -> set[str]:
        found = (table.table.split(".") for table in self.tables())
        return {name for first, name in found if first == schema}

    def _register(self, connection: duckdb.DuckDBPyConnection, text: str) -> list[LazyTable]:
        """Make the tables known that `text` names."""
        if self._shared is not None:
            return self._register_shared(self._shared, connection, text)
        streams = []
        is_listing = is_about_tables(text)
        parts = self._list_parts() if is_listing else self._list_named_parts(text)
        for name, tables in parts.items():
            named = self._is_named(name, text)
            if not self._wants(name) or not (named or is_listing):
                continue
            streams.append(self._make_known(connection, name, tables, named))
        streams += self._register_views(connection, catalog.list_views(), text)
        connection.execute(f"USE {CATALOG}.main")
        return streams

    def _list_named_parts(self, text: str) -> dict[str, list[SessionTable]]:
        """Return the parts of the tables that a text names: a session has many others."""
        return self._list_parts(lambda name: self._is_named(name, text))

    def _list_parts(
        self, wants: Callable[[str], bool] | None = None
    ) -> dict[str, list[SessionTable]]:
        """Return the parts of every table that can be recorded, by name; with `wants`, of those
        tables whose names it is true of."""
        parts: dict[str, list[SessionTable]] = {}
        for session in self.sessions:
            for name, table in open_tables(session, wants).items():
                parts.setdefault(name, []).append(table)
        for schema in catalog.list_recorded():
            if wants is not None and not wants(schema.table):
                continue
            # A table without rows is empty, not missing: a query need not know what was on.
            # A column that a table did not have yet when it was written is NULL.
            columns = {field.name for field in schema.fields}
            found = parts.setdefault(schema.table, [])
            if not any(columns <= {field.name for field in table.schema.fields} for table in found):
                found.append(SessionTable.make_empty(self.sessions[0], schema))
        return parts

    def _is_named(self, table: str, text: str) -> bool:
        """Tell whether a query may be about a table; that other words match only costs time."""
        return _short_name(table) in text

    def _make_known(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: str,
        tables: list[SessionTable],
        verified: bool,
    ) -> LazyTable:
        relation, stream = self._open_table(connection, tables, verified)
        self._add_table(connection, name, relation)
        return stream

    def _add_table(
        self, connection: duckdb.DuckDBPyConnection, name: str, relation: duckdb.DuckDBPyRelation
    ) -> None:
        create_view(connection, name, relation)

    def _register_views(
        self, connection: duckdb.DuckDBPyConnection, views: Sequence[View], text: str
    ) -> list[LazyTable]:
        streams = []
        for view in filter(lambda view: self._wants(view.schema.table), views):
            if not (is_about_tables(text) or self._is_named(view.schema.table, text)):
                continue
            streams.append(self._make_view_known(connection, view))
        return streams

    def _make_view_known(self, connection: duckdb.DuckDBPyConnection, view: View) -> LazyTable:
        stream = self._open_view(view)
        create_view(connection, stream.name, connection.from_arrow(stream))
        return stream

    def _register_shared(
        self, shared: SharedTables, connection: duckdb.DuckDBPyConnection, text: str
    ) -> list[LazyTable]:
        views = [view for view in catalog.list_views() if view.from_tables]
        computed = {view.schema.table for view in views}
        for name in (schema.table for schema in shared.list_schemas()):
            if name not in computed and (is_about_tables(text) or _short_name(name) in text):
                create_view(connection, name, shared.open(connection, name))
        streams = self._register_views(connection, views, text)
        connection.execute(f"USE {CATALOG}.main")
        return streams

    def _wants(self, _name: str) -> bool:
        """Tell whether a table can be queried."""
        return True

    def _open_table(
        self, connection: duckdb.DuckDBPyConnection, tables: list[SessionTable], verified: bool
    ) -> tuple[duckdb.DuckDBPyRelation, LazyTable]:
        table = CombinedTable(tables, by_engine=True)
        return table.open(connection, verified=verified), table.stream

    def _list_folders(self) -> list[str]:
        """Return the folders that the engine may read: the archives."""
        return [] if self._shared else [one.path(archive.FOLDER) for one in self.sessions]

    def _open_view(self, view: View) -> LazyTable:
        return LazyTable(view.schema.table, view.columns, partial(view.read, self.sessions))


class FrozenRecording(Recording):
    """A recording as it was when it was first queried. Close it, or use it in a `with`."""

    def __init__(self, sessions: Sequence[Session], text: str) -> None:
        super().__init__(sessions)
        self._text = text.lower()
        self._opened: tuple[duckdb.DuckDBPyConnection, list[LazyTable]] | None = None
        self._schemas: list[Schema] | None = None

    def __enter__(self: F) -> F:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the tables; another query opens them again."""
        opened, self._opened = self._opened, None
        if opened is not None and opened[0] not in abandoned:
            opened[0].close()

    def tables(self) -> list[Schema]:
        if self._schemas is None:
            self._schemas = super().tables()
        return self._schemas

    def _list_parts(
        self, wants: Callable[[str], bool] | None = None
    ) -> dict[str, list[SessionTable]]:
        return leave_out_copies(super()._list_parts(wants))

    def _query_once(self, sql: str, text: str, timeout_s: float, memory: str) -> pa.Table:
        try:
            connection, streams = self._open(text, memory)
            require_select(connection, sql)
            with raise_own_error(streams):
                return run(connection, self._qualify(sql), timeout_s, memory)
        except BaseException:
            self.close()  # the files may have new names by now, or the engine may still be busy
            raise

    def _open(self, text: str, memory: str) -> tuple[duckdb.DuckDBPyConnection, list[LazyTable]]:
        names = (_short_name(schema.table) for schema in self.tables())
        if any(name in text and name not in self._text for name in names) or (
            is_about_tables(text) and not is_about_tables(self._text)
        ):
            self._text += "\n" + text
            self.close()
        if self._opened is None:
            connection = connect(memory, self._list_folders())
            self._opened = connection, self._register(connection, self._text)
            connection.execute("SET lock_configuration = true")
        return self._opened

    def _stream_once(
        self,
        sql: str,
        text: str,
        given: Mapping[str, pa.Table],
        timeout_s: float,
        memory: str,
    ) -> Iterator[pa.RecordBatch]:
        try:
            connection, streams = self._open(text, memory)
            require_select(connection, sql)
            for name, rows in given.items():
                connection.register(name, rows)
            with raise_own_error(streams):
                yield from iter_pieces(connection, self._qualify(sql), timeout_s)
        except BaseException:
            self.close()  # as above
            raise


def _short_name(table: str) -> str:
    return table.partition(".")[2]


def is_about_tables(text: str) -> bool:
    """Tell whether a query may be about tables that it does not name."""
    return any(word in text for word in _LISTING)


def _name_all(text: str) -> str:
    return f"{text}\n{_LISTING[0]}"
