"""SQL over a shared place on an engine that runs elsewhere.

DuckDB, which is here in any case, checks the statement against empty tables: it knows our names
and says what is wrong with them, and the types of its answer are those that every engine's answer
is brought to. Then the statement is written in the engine's own SQL."""

from __future__ import annotations

import threading
from typing import Any

import duckdb
import pyarrow as pa

from sonde import plugins, settings
from sonde.errors import ConfigError, MissingPart, QueryError
from sonde.session.schema import Schema
from sonde.store import catalog
from sonde.store.combined import LazyTable, create_view
from sonde.store.engine import too_large, wait_for_answer
from sonde.store.place import is_place
from sonde.store.recording import Recording, is_about_tables
from sonde.store.remote_table import RemoteTable
from sonde.store.shared_session import find_shared
from sonde.store.shared_tables import SharedTables, make_columns
from sonde.store.sql_tree import Node, SqlParser, find_tables
from sonde.store.sql_writer import SqlWriter, name_view
from sonde.store.statement import CATALOG

BUILT_IN = "duckdb"
ENGINES = {"sc": "spark", "ray": "ray"}  # by the scheme of their address
_CLOSE_S = 5.0


def check_address(address: str) -> None:
    """Raise an error for anything that is no engine's address."""
    if address != BUILT_IN and address.partition("://")[0] not in ENGINES:
        raise ConfigError(
            f"--engine {address!r} is not an engine; write duckdb, sc://host:15002 (Spark Connect) "
            "or ray://host:10001 (Daft on Ray)"
        )


def open_remote(target: str, address: str) -> RemoteRecording:
    """Return what a shared place has, to be asked with another engine."""
    check_address(address)
    if not is_place(target):
        raise ConfigError(
            f"--engine {address} reads a shared place (see archive.to), and {target} is none"
        )
    if int(duckdb.__version__.partition(".")[0]) < 2:
        extra = ENGINES[address.partition("://")[0]]
        raise MissingPart(f"--engine needs DuckDB 2 to read SQL: pip install 'sonde[{extra}]'")
    return RemoteRecording(target, address)


class RemoteRecording(Recording):
    """Sessions in a shared place, asked with another engine."""

    def __init__(self, target: str, address: str) -> None:
        super().__init__(find_shared(target))
        self._address = address

    def _query_once(self, sql: str, text: str, timeout_s: float, memory: str) -> pa.Table:
        wanted = super()._query_once(sql, text, timeout_s, memory).schema
        parser = SqlParser()
        try:
            tree = parser.parse(sql)
        finally:
            parser.close()
        if tree is None:
            raise QueryError("EXPLAIN is answered by the engine that is built in: leave --engine")
        assert self._shared is not None
        return self._ask(tree, self._shared, wanted, timeout_s, memory)

    def _register_shared(
        self, shared: SharedTables, connection: duckdb.DuckDBPyConnection, text: str
    ) -> list[LazyTable]:
        """Make the tables known, without rows."""
        for schema in shared.list_schemas():
            if is_about_tables(text) or self._is_named(schema.table, text):
                empty = make_columns(schema).empty_table()
                create_view(connection, schema.table, connection.from_arrow(empty))
        connection.execute(f"USE {CATALOG}.main")
        return []

    def _ask(
        self, tree: Node, shared: SharedTables, wanted: pa.Schema, timeout_s: float, memory: str
    ) -> pa.Table:
        module = plugins.load("store.engines", ENGINES[self._address.partition("://")[0]])
        schemas = {one.table: one for one in shared.list_schemas()}
        named = {name: schemas[name] for name in sorted(find_tables(tree)) if name in schemas}
        _refuse_computed(named)
        sql = SqlWriter(module.DIALECT, named).write(tree)
        tables = [_describe(shared, schema) for schema in named.values()]
        engine = module.open_engine(self._address)
        rows = _run(engine, tables, sql, timeout_s)
        if rows.nbytes > settings.parse_size(memory):
            raise too_large(memory)
        return _fit(rows, wanted)


def _describe(shared: SharedTables, schema: Schema) -> RemoteTable:
    paths, sessions = shared.find_files(schema.table)
    return RemoteTable(
        name_view(schema.table), schema.fields, paths, sessions, shared.list_once(schema)
    )


def _refuse_computed(named: dict[str, Schema]) -> None:
    computed = {view.schema.table for view in catalog.list_views() if view.from_tables}
    for name in named:
        if name in computed:
            raise QueryError(
                f"{name} is worked out by sonde and is in no file that an engine could read; ask "
                "without --engine, or use the column frames of python.stack_sample"
            )


def _run(engine: Any, tables: list[RemoteTable], sql: str, timeout_s: float) -> pa.Table:
    """Ask an engine, and leave it afterwards."""

    def stop(done: threading.Event) -> None:
        if not done.is_set():
            engine.cancel()
            done.wait(_CLOSE_S)
        engine.close()

    rows: pa.Table = wait_for_answer(lambda: engine.ask(tables, sql), timeout_s, stop)
    return rows


def _fit(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return an answer with the names and types that DuckDB would have given it."""
    if rows.num_columns != len(wanted):
        raise QueryError(f"the engine answered with {rows.num_columns} columns, not {len(wanted)}")
    try:
        columns = [
            column.cast(field.type, safe=False)
            for column, field in zip(rows.columns, wanted, strict=True)
        ]
    except pa.ArrowException as error:
        raise QueryError(f"the engine answered with other types: {error}") from None
    return pa.Table.from_arrays(columns, schema=wanted)
