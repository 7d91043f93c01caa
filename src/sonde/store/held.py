"""A recording for many queries: each table is read once, by the first query that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import duckdb

from sonde.session import Session
from sonde.store.archive_sql import make_archived, make_empty, name_table, read_segments
from sonde.store.combined import CombinedTable, LazyTable, create_view, raise_own_error
from sonde.store.engine import GIVES_BACK, Rows, connect, fetch_rows, run
from sonde.store.recording import (
    FAILURES,
    MEMORY,
    TIMEOUT_S,
    TRIES,
    FrozenRecording,
    is_about_tables,
)  # fmt: skip
from sonde.store.rows import SessionTable
from sonde.store.statement import CATALOG
from sonde.store.view import View
from sonde.store.views.stacks import FRAME, FRAME_SQL, FRAME_TABLES

_FRAME = FRAME.schema.table
_MOST = 1_000_000  # rows of a table that is read at once: some 100 MB; of a longer one, each query
# reads what it needs


class HeldRecording(FrozenRecording):
    """A recording as it was when it was first queried, for queries that write `schema.table`.

    To plan a query over many files, and to read them, takes longer than most queries of a rule.
    `keeps_memory` is for a process that asks and ends: the engine gives nothing back before, which
    saves a tenth of the time of many small queries."""

    def __init__(self, sessions: Sequence[Session], *, keeps_memory: bool = False) -> None:
        super().__init__(sessions, "")
        self.keeps_memory = keeps_memory
        self._parts: dict[str, list[SessionTable]] | None = None
        self._added: set[str] = set()
        self._made_schemas: set[str] = set()
        self._known_names: dict[str, set[str]] = {}  # by schema, of its tables
        self._kept: dict[str, str] = {}  # by query: the table that has its rows
        self._thinned: dict[str, str] = {}  # by table: which rows it has

    def close(self) -> None:
        self._parts, self._kept = None, {}
        self._added, self._made_schemas = set(), set()
        super().close()

    def fetch(self, sql: str) -> Rows:
        """Return the names of the columns and the rows of a query, as Python's own values: for many
        small queries this takes two thirds of the time of `query`."""
        tried = 0
        while True:
            try:
                connection, streams = self._open(sql.lower(), MEMORY)
                with raise_own_error(streams):
                    found: Rows = run(connection, self._qualify(sql), TIMEOUT_S, MEMORY, fetch_rows)
                    return found
            except FAILURES as error:
                self.close()
                tried += 1
                if tried == TRIES or not self._is_vanished(error):
                    raise self._explain(error, MEMORY) from None
            except BaseException:  # a damaged file, say: what was begun would be missing later
                self.close()
                raise

    def thin(self, tables: Iterable[str], condition: str, most: int = _MOST) -> None:
        """Leave only those rows of which a condition is true in these tables, if they have more
        than `most`."""
        if self._shared is not None:
            return
        for name in tables:
            if name not in self._list_parts() or self._count(name) <= most:
                continue
            self._thinned[name] = condition
        self.close()  # what was read is read again, without the rest

    def find_empty(self, tables: Iterable[str]) -> set[str]:
        """Return those of these tables that have no rows, as far as can be told without reading."""
        if self._shared is not None:
            return set()
        parts = self._list_parts()
        return {name for name in tables if name in parts and not self._count(name)}

    def keep(self, name: str, sql: str) -> str:
        """Work out a query once; return what to write for it in others, behind FROM. `name` is what
        its table is called; if there is one of that name for another query, with a number."""
        if self._shared is not None:
            return f"({sql})"
        if sql not in self._kept:
            name = f"{name}_{len(self._kept)}" if name in self._kept.values() else name
            try:
                connection, streams = self._open(sql.lower(), MEMORY)
                with raise_own_error(streams):
                    made = f'CREATE TABLE {CATALOG}.main."{name}" AS {self._qualify(sql)}'
                    connection.execute(made)
            except BaseException:
                self.close()
                raise
            self._kept[sql] = name
        return self._kept[sql]

    def _list_named_parts(self, text: str) -> dict[str, list[SessionTable]]:  # noqa: ARG002
        return self._list_parts()  # they are opened once for all queries

    def _list_parts(
        self,
        wants: Callable[[str], bool] | None = None,  # noqa: ARG002
    ) -> dict[str, list[SessionTable]]:
        if self._parts is None:
            self._parts = super()._list_parts()
        return self._parts

    def _names(self, schema: str) -> set[str]:
        if schema not in self._known_names:
            self._known_names[schema] = super()._names(schema)
        return self._known_names[schema]

    def _count(self, name: str) -> int:
        return sum(part.count_at_most() for part in self._list_parts()[name])

    def _open(self, text: str, memory: str) -> tuple[duckdb.DuckDBPyConnection, list[LazyTable]]:
        if self._shared is not None:
            return super()._open(text, memory)
        if self._opened is None:
            tuning = {} if self.keeps_memory else GIVES_BACK
            connection = connect(memory, self._list_folders(), tuning=tuning)
            connection.execute("SET lock_configuration = true")
            self._opened = connection, []
        connection, streams = self._opened
        is_listing = is_about_tables(text)
        named = [
            one.table for one in self.tables() if is_listing or self._is_named(one.table, text)
        ]
        if not self._added.issuperset(named):
            streams += self._register(connection, text)
            self._added.update(named)
        return self._opened

    def _wants(self, name: str) -> bool:
        return name not in self._added

    def _is_named(self, table: str, text: str) -> bool:
        return table in text

    def _make_known(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: str,
        tables: list[SessionTable],
        verified: bool,
    ) -> LazyTable:
        self._added.add(name)
        return self._make_of_files(connection, tables) or super()._make_known(
            connection, name, tables, verified
        )

    def _make_of_files(
        self, connection: duckdb.DuckDBPyConnection, tables: list[SessionTable]
    ) -> LazyTable | None:
        """Make a table known whose rows are all archived, or that has none; return its stream,
        which nobody reads. None if there are other rows, or files that need a closer look."""
        table = CombinedTable(tables)
        count = self._count(table.name)
        is_long = count > _MOST and table.name not in self._thinned
        if count and (is_long or any(one.ring is not None for one in tables)):
            return None
        condition = self._thinned.get(table.name)
        sql = make_archived(table, condition, verified=True) if count else make_empty(table)
        if sql is None:
            return None
        try:
            self._create_schema(connection, table.name)
            connection.execute(sql)
        except duckdb.Error:
            return None  # if it is not for a passing reason, Arrow says better what is wrong
        return table.stream

    def _make_view_known(self, connection: duckdb.DuckDBPyConnection, view: View) -> LazyTable:
        name = view.schema.table
        self._added.add(name)
        if self._shared is not None or name not in (_FRAME, *FRAME_TABLES):
            return super()._make_view_known(connection, view)
        if name != _FRAME:
            # Before the engine asks for it: the engine itself reads the files.
            rows = view.read(self.sessions, partial(read_segments, connection))
            stream = LazyTable(name, view.columns, lambda: rows)
            self._create_table(connection, name, connection.from_arrow(stream))
            return stream
        others = [other for other in FRAME_TABLES if other not in self._added]
        self._register(connection, " ".join(others))
        connection.execute(f"CREATE TABLE {name_table(name)} AS {FRAME_SQL}")
        return LazyTable(name, view.columns, view.columns.empty_table)

    def _add_table(
        self, connection: duckdb.DuckDBPyConnection, name: str, relation: duckdb.DuckDBPyRelation
    ) -> None:
        if name in self._thinned:
            relation = relation.filter(self._thinned[name])
        elif self._count(name) > _MOST:
            create_view(connection, name, relation)
            return
        self._create_table(connection, name, relation)

    def _create_table(
        self, connection: duckdb.DuckDBPyConnection, name: str, relation: duckdb.DuckDBPyRelation
    ) -> None:
        self._create_schema(connection, name)
        schema, _, table = name.partition(".")
        # DuckDB 1.5 takes no name of three parts here.
        connection.execute(f'USE {CATALOG}."{schema}"')
        relation.create(table)

    def _create_schema(self, connection: duckdb.DuckDBPyConnection, name: str) -> None:
        schema = name.partition(".")[0]
        if schema not in self._made_schemas:
            connection.execute(f'CREATE SCHEMA IF NOT EXISTS {CATALOG}."{schema}"')
            self._made_schemas.add(schema)
