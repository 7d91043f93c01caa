"""One table of many sessions as one relation: live rows and archived rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from sonde.errors import Damaged, Error
from sonde.store.archive import Segment, read_segment
from sonde.store.rows import SessionTable, arrow_schema
from sonde.store.statement import CATALOG

_FEW = 200_000  # archived rows that are read as a whole: some 20 MB. Of more, what a query needs
_PATTERN = frozenset("*?[]{}")


class LazyTable:
    """A table that is read once, when a query first scans it."""

    def __init__(self, name: str, schema: pa.Schema, read: Callable[[], pa.Table]) -> None:
        self.name, self.schema, self._read = name, schema, read
        self._rows: pa.Table | None = None
        self.error: Exception | None = None

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        if self._rows is None:
            try:
                rows = self._read()
                self._rows = rows if rows.schema.equals(self.schema) else rows.cast(self.schema)
            except (Error, FileNotFoundError) as error:
                self.error = error  # DuckDB passes on only its text
                raise
            except (OSError, ValueError, TypeError, ArithmeticError) as error:
                reason = " ".join(str(error).split())
                self.error = Damaged(
                    f"{self.name} cannot be read: {type(error).__name__}: {reason}"
                )
                raise
        return self._rows.__arrow_c_stream__(requested_schema)

    def renew(self, read: Callable[[], pa.Table]) -> None:
        """Forget the rows; the next query reads them in another way."""
        self._read, self._rows, self.error = read, None, None


class CombinedTable:
    """One table of many sessions."""

    def __init__(
        self,
        tables: Sequence[SessionTable],
        read: Callable[[Segment], pa.Table] = read_segment,
        *,
        by_engine: bool = False,
    ) -> None:
        self.tables, self._read, self._by_engine = tables, read, by_engine
        self.name = tables[0].schema.table
        columns = combine_schemas([arrow_schema(table.schema) for table in tables])
        self.stream = LazyTable(self.name, columns, self.read_whole)
        self._few: list[Segment] = []  # that are read with the live rows

    def read_whole(self) -> pa.Table:
        wanted = self.stream.schema
        live = [table.read_live() for table in self.tables if table.ring is not None]
        few = [self._read(part) for part in self._few]
        return pa.concat_tables(
            [wanted.empty_table(), *(fit_columns(rows, wanted) for rows in (*live, *few))]
        )

    def open(
        self, connection: duckdb.DuckDBPyConnection, *, verified: bool
    ) -> duckdb.DuckDBPyRelation:
        """Return the relation; its rows are read when it is scanned. `verified` leaves out damaged
        segments, which means reading every byte of them."""
        relation = connection.from_arrow(self.stream)
        groups = [] if self.take_few(verified=verified) else self.list_groups(verified=verified)
        for schema, segments in groups:
            archived = self._open_files(connection, schema, [one.path for one in segments])
            relation = relation.union(_align(archived, self.stream.schema))
        if not self.has_copies:
            return relation
        return keep_once_per_host(relation, [f.name for f in self.tables[0].schema.fields])

    @property
    def has_copies(self) -> bool:
        """Whether several sessions have the same rows about a machine."""
        return len(self.tables) > 1 and self.tables[0].schema.scope == "host"

    def take_few(self, *, verified: bool) -> bool:
        """Have the stream read archived rows with the live ones, if there are few; tell whether it
        reads all rows."""
        parts = [part for _, parts in self.list_groups(verified=verified) for part in parts]
        if sum(part.last - part.first for part in parts) > _FEW:
            return False
        self._few = parts
        return True

    def _open_files(
        self, connection: duckdb.DuckDBPyConnection, schema: pa.Schema, paths: list[str]
    ) -> duckdb.DuckDBPyRelation:
        """Return the rows of files, which are read when they are scanned: by the engine, if it may
        reach them, since that takes a third of the memory. It takes some names for patterns."""
        if self._by_engine and not any(map(is_pattern, paths)):
            return connection.read_parquet(paths, hive_partitioning=False)
        import pyarrow.dataset as ds  # only here: few recordings are as long

        files = ds.dataset(paths, schema=schema, format="parquet", partitioning=None)
        return connection.from_arrow(files)

    def list_groups(self, *, verified: bool) -> list[tuple[pa.Schema, list[Segment]]]:
        """Group archived segments by their columns: a few groups, however many sessions."""
        groups: list[tuple[pa.Schema, list[Segment]]] = []
        for table in self.tables:
            schema = arrow_schema(table.schema)
            segments = table.list_sound() if verified else table.segments
            mine = next((group for known, group in groups if known == schema), None)
            if mine is None:
                groups.append((schema, mine := []))
            mine.extend(segments)
        return [(schema, segments) for schema, segments in groups if segments]


def is_pattern(path: str) -> bool:
    """Tell whether the engine takes the name of a file for a pattern."""
    return not _PATTERN.isdisjoint(path)


def combine_schemas(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return all columns of all schemas; where types differ, one that can hold both."""
    found: dict[str, pa.DataType] = {}
    for schema in {id(schema): schema for schema in schemas}.values():  # most have the same
        for field in schema:
            known = found.setdefault(field.name, field.type)
            if known != field.type:
                found[field.name] = _widen(known, field.type)
    return pa.schema(list(found.items()))


def _widen(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_signed_integer(one) and types.is_signed_integer(other):
        return pa.int64()
    if types.is_unsigned_integer(one) and types.is_unsigned_integer(other):
        return pa.uint64()
    numbers = all(types.is_floating(kind) or types.is_integer(kind) for kind in (one, other))
    # Signed and unsigned 64-bit integers only fit into text: a double would round them.
    return pa.float64() if numbers and pa.float64() in (one, other) else pa.string()


def fit_columns(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return rows with the wanted columns, and NULL in those that they do not have."""
    if rows.schema.equals(wanted):
        return rows
    columns = [
        rows[field.name].cast(field.type, safe=False)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    return pa.table(columns, schema=wanted)


def _align(relation: duckdb.DuckDBPyRelation, wanted: pa.Schema) -> duckdb.DuckDBPyRelation:
    if relation.columns == wanted.names:
        return relation
    named = (
        f'"{name}"' if name in relation.columns else f'NULL AS "{name}"' for name in wanted.names
    )
    return relation.project(", ".join(named))


def keep_once_per_host(
    relation: duckdb.DuckDBPyRelation, columns: Sequence[str]
) -> duckdb.DuckDBPyRelation:
    """Keep one copy of the rows about a machine, which every session of its host has. Only `ts` may
    differ, by the microsecond between the sessions' clock anchors; `columns` are the others."""
    own = ", ".join(f'"{name}"' for name in columns)
    # The name must be nobody else's: DuckDB 1.5 looks it up again when the rows are asked for.
    rows = f"rows of {relation.alias}"
    once = relation.query(rows, f'SELECT DISTINCT ON (host, {own}) * FROM "{rows}"')
    assert once is not None  # None is for statements without rows
    return once


@contextmanager
def raise_own_error(streams: Sequence[LazyTable]) -> Iterator[None]:
    """Raise an error of ours instead of DuckDB's: it explains why a table could not be read."""
    try:
        yield
    except duckdb.Error:
        for stream in streams:
            if stream.error is not None:
                raise stream.error from None
        raise


def create_view(
    connection: duckdb.DuckDBPyConnection, table: str, relation: duckdb.DuckDBPyRelation
) -> None:
    """Make a relation known by the name of its table."""
    schema, _, name = table.partition(".")
    connection.execute(f'CREATE SCHEMA IF NOT EXISTS {CATALOG}."{schema}"')
    connection.execute(f'USE {CATALOG}."{schema}"')
    relation.create_view(name)
