"""Databases that a server keeps between queries, with their views: to open them takes far longer
than a small query."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial

import duckdb
import pyarrow as pa

from sonde.session import Session
from sonde.store import catalog
from sonde.store.archive import SegmentMemory
from sonde.store.combined import CombinedTable, LazyTable, create_view, raise_own_error
from sonde.store.engine import abandoned, connect, run
from sonde.store.recording import Recording
from sonde.store.rows import SessionTable
from sonde.store.statement import CATALOG, require_select
from sonde.store.view import View

_REMEMBERED_BYTES = 64 << 20  # of archived rows, for the next question about them
_KEPT_MEMORY = "32MB"
# A server is a guest beside a job: a query takes one of its processors. To give memory back after
# every query, and to wake other threads for it, takes as long as the query itself.
_SERVES = {
    "threads": "1",
    "allocator_flush_threshold": _KEPT_MEMORY,
    "allocator_bulk_deallocation_flush_threshold": _KEPT_MEMORY,
}
_Shape = tuple[pa.Schema, bool]  # columns; whether rows about a machine are kept once


class Engine:
    """A database with views that stay: each query says anew how their rows are read."""

    def __init__(self, memory: str) -> None:
        self.memory, self.connection = memory, connect(memory, tuning=_SERVES)
        self.connection.execute("SET lock_configuration = true")
        self._views: dict[str, tuple[_Shape, LazyTable]] = {}
        self._lent: dict[str, LazyTable] = {}  # that the current query reads
        self.old_views = _OldViews()

    def close(self) -> None:
        """Close the database, unless a query is left that does not end."""
        if self.connection not in abandoned:
            self.connection.close()

    def find_view(self, name: str, shape: _Shape, read: Callable[[], pa.Table]) -> LazyTable | None:
        """Return a view of this shape whose rows are now read in this way, if there is one."""
        known = self._views.get(name)
        if known is None or known[0] != shape:
            return None
        self._lent[name] = known[1]
        known[1].renew(read)
        return known[1]

    def note_view(self, name: str, shape: _Shape | None, stream: LazyTable) -> None:
        """Remember a view that was made; one without a shape goes after the query."""
        self._views.pop(name, None)
        if shape is not None and name in _list_lasting():
            self._views[name] = shape, stream
        self._lent[name] = stream

    def end_query(self) -> None:
        """Have no view read anything any more, and remove those that do not stay."""
        for name, stream in self._lent.items():
            stream.renew(self.old_views.read)
            if name not in self._views:
                schema, _, table = name.partition(".")
                self.connection.execute(f'DROP VIEW {CATALOG}."{schema}"."{table}"')
        self._lent.clear()


class _OldViews:
    """The views of earlier queries, and whether somebody reads them. It knows nothing of the
    database, which holds them: Python does not see circles through it."""

    def __init__(self) -> None:
        self.were_read = False

    def read(self) -> pa.Table:
        self.were_read = True
        raise ValueError("this table is one of an earlier query")


@cache
def _list_lasting() -> frozenset[str]:
    """Return the names of the tables that every recording has, rather than one program."""
    return frozenset(schema.table for schema in catalog.list_tables())


class EnginePool:
    """Lends databases to queries, and keeps some of those that are given back. Its threads stay,
    too, so it is for a server, not for a user's program. What these queries read of the archive is
    remembered as well."""

    def __init__(self, most: int) -> None:
        self._most, self._kept = most, list[Engine]()
        self.read_segment = SegmentMemory(_REMEMBERED_BYTES).read
        self._lock = threading.Lock()

    def prepare(self, memory: str) -> None:
        """Open the database of the first query."""
        self._give_back(Engine(memory))

    @contextmanager
    def lend(self, memory: str) -> Iterator[Engine]:
        """Lend a database that reads no files, and whose settings cannot be changed."""
        engine = self._take(memory) or Engine(memory)
        try:
            yield engine
            engine.end_query()
        except BaseException:
            engine.close()
            raise
        self._give_back(engine)

    def _take(self, memory: str) -> Engine | None:
        with self._lock:
            if self._kept and self._kept[-1].memory == memory:
                return self._kept.pop()
        return None

    def _give_back(self, engine: Engine) -> None:
        with self._lock:
            if len(self._kept) < self._most:
                self._kept.append(engine)
                return
        engine.close()

    def close(self) -> None:
        """Close the databases that are kept."""
        with self._lock:
            kept, self._kept = self._kept, []
        for engine in kept:
            engine.close()


class PooledRecording(Recording):
    """A recording that is asked with a database of a pool."""

    def __init__(self, sessions: Sequence[Session], pool: EnginePool) -> None:
        super().__init__(sessions)
        self._pool = pool
        self._engine: Engine | None = None  # of the query that runs

    def _query_once(self, sql: str, text: str, timeout_s: float, memory: str) -> pa.Table:
        with self._pool.lend(memory) as engine:
            self._engine = engine
            require_select(engine.connection, sql)
            streams = self._register(engine.connection, text)
            try:
                with raise_own_error(streams):
                    return run(engine.connection, self._qualify(sql), timeout_s, memory)
            except duckdb.Error:
                if engine.old_views.were_read:  # the query names a table in pieces
                    raise duckdb.CatalogException("a table is not there") from None
                raise

    def _make_known(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: str,
        tables: list[SessionTable],
        verified: bool,
    ) -> LazyTable:
        assert self._engine is not None
        table = CombinedTable(tables, self._pool.read_segment)
        shape = None
        if table.take_few(verified=verified):
            shape = table.stream.schema, table.has_copies
            known = self._engine.find_view(name, shape, table.read_whole)
            if known is not None:
                return known
        create_view(connection, name, table.open(connection, verified=verified))
        self._engine.note_view(name, shape, table.stream)
        return table.stream

    def _make_view_known(self, connection: duckdb.DuckDBPyConnection, view: View) -> LazyTable:
        assert self._engine is not None
        name, shape = view.schema.table, (view.columns, False)
        known = self._engine.find_view(name, shape, partial(view.read, self.sessions))
        if known is not None:
            return known
        stream = super()._make_view_known(connection, view)
        self._engine.note_view(name, shape, stream)
        return stream
