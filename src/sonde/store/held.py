"""A recording for many queries: each table is read once, by the first query that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import duckdb

from sonde.session import Session
from sonde.store.combined import LazyTable, create_view, raise_own_error
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

_MOST = 1_000_000  # rows of a table that is read at once: some 100 MB; of a longer one, each query
# reads what it needs


class HeldRecording(FrozenRecording):
    """A recording as it was when it was first queried, for queries that write `schema.table`.

    To plan a query over many files, and to read them, takes longer than most queries of a rule.
    `keeps_memory` is for a process that asks and ends: the engine gives nothing back before, which
    saves a tenth of the time of many small queries."""

    def __init__(self, sessions: Sequence[Session], *, keeps_memory: bool = False) -> None:
        super().__init__(sessions, "")
        self._keeps_memory = keeps_memory
        self._parts: dict[str, list[SessionTable]] | None = None
        self._added: set[str] = set()
        self._kept: dict[str, str] = {}  # by query: the table that has its rows
        self._thinned: dict[str, str] = {}  # by table: which rows it has

    def close(self) -> None:
        self._parts, self._added, self._kept = None, set(), {}
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

    def _count(self, name: str) -> int:
        return sum(part.count_at_most() for part in self._list_parts()[name])

    def _open(self, text: str, memory: str) -> tuple[duckdb.DuckDBPyConnection, list[LazyTable]]:
        if self._shared is not None:
            return super()._open(text, memory)
        if self._opened is None:
            tuning = {} if self._keeps_memory else GIVES_BACK
            connection = connect(memory, self._list_folders(), tuning=tuning)
            connection.execute("SET lock_configuration = true")
            self._opened = connection, []
        connection, streams = self._opened
        streams += self._register(connection, text)
        self._added |= {name for name in self._list_names() if self._is_named(name, text)}
        if is_about_tables(text):
            self._added |= set(self._list_names())
        return self._opened

    def _list_names(self) -> list[str]:
        return [schema.table for schema in self.tables()]

    def _wants(self, name: str) -> bool:
        return name not in self._added

    def _is_named(self, table: str, text: str) -> bool:
        return table in text

    def _make_view_known(self, connection: duckdb.DuckDBPyConnection, view: View) -> LazyTable:
        if view.schema.table != "python.frame":
            return super()._make_view_known(connection, view)
        stream = self._open_view(view)
        _create_table(connection, stream.name, connection.from_arrow(stream))
        return stream

    def _add_table(
        self, connection: duckdb.DuckDBPyConnection, name: str, relation: duckdb.DuckDBPyRelation
    ) -> None:
        if name in self._thinned:
            relation = relation.filter(self._thinned[name])
        elif self._count(name) > _MOST:
            create_view(connection, name, relation)
            return
        _create_table(connection, name, relation)


def _create_table(
    connection: duckdb.DuckDBPyConnection, name: str, relation: duckdb.DuckDBPyRelation
) -> None:
    schema, _, table = name.partition(".")
    connection.execute(f'CREATE SCHEMA IF NOT EXISTS {CATALOG}."{schema}"')
    connection.execute(f'USE {CATALOG}."{schema}"')  # DuckDB 1.5 takes no name of three parts here
    relation.create(table)
