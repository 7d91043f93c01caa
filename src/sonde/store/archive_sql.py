"""SQL that makes a table of archived rows, or one without rows: the engine reads the files itself.

To hand each file over as Arrow takes two to three times as long, and a job of many processes has
thousands of files."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from sonde.store import archive
from sonde.store.archive import Segment
from sonde.store.combined import CombinedTable, is_pattern
from sonde.store.statement import CATALOG

_TYPES = {
    pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER", pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT", pa.uint16(): "USMALLINT", pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN", pa.string(): "VARCHAR",
    pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
}  # fmt: skip


def name_table(name: str) -> str:
    """Return `schema.table` as SQL that means our catalog."""
    schema, _, table = name.partition(".")
    return f'{CATALOG}."{schema}"."{table}"'


def make_empty(table: CombinedTable) -> str:
    """Return the statement that makes a table without rows."""
    columns = ", ".join(f'"{field.name}" {_TYPES[field.type]}' for field in table.stream.schema)
    return f"CREATE TABLE {name_table(table.name)} ({columns})"


def make_archived(table: CombinedTable, condition: str | None, *, verified: bool) -> str | None:
    """Return the statement that makes a table of all archived rows of which a condition is true;
    None if the engine may not be asked for some file."""
    wanted, parts = table.stream.schema, list[str]()
    for schema, segments in table.list_groups(verified=verified):
        if any(is_pattern(one.path) for one in segments):
            return None
        parts.append(_read_files(schema, wanted, [one.path for one in segments]))
    rows = " UNION ALL ".join(parts)
    if not parts:
        return make_empty(table)
    if table.has_copies:
        own = ", ".join(f'"{field.name}"' for field in table.tables[0].schema.fields)
        # In an order: sums of fractions would differ in their last digit from time to time.
        rows = f"SELECT DISTINCT ON (host, {own}) * FROM ({rows}) ORDER BY host, {own}"
    where = "" if condition is None else f" WHERE {condition}"
    return f"CREATE TABLE {name_table(table.name)} AS SELECT * FROM ({rows}){where}"


def read_segments(
    connection: duckdb.DuckDBPyConnection, segments: Sequence[Segment], schema: pa.Schema
) -> pa.Table:
    """Return the rows of files in these columns, as archive.read_segments does."""
    if not segments:
        return schema.empty_table()
    if not any(is_pattern(one.path) for one in segments):
        sql = _read_files(schema, schema, [one.path for one in segments])
        try:
            rows = connection.sql(sql).to_arrow_table()
            return rows if rows.schema.equals(schema) else rows.cast(schema)
        except duckdb.Error:
            pass  # as in HeldRecording: Arrow says better what is wrong, and fills in columns
    return archive.read_segments(segments, schema)


def _read_files(schema: pa.Schema, wanted: pa.Schema, paths: Sequence[str]) -> str:
    """Return the SELECT for files that have the columns of `schema`, as those that are wanted."""
    columns = ", ".join(_read_column(schema, field) for field in wanted)
    quoted = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
    return f"SELECT {columns} FROM read_parquet([{quoted}], hive_partitioning = false)"


def _read_column(schema: pa.Schema, field: pa.Field) -> str:
    at = schema.get_field_index(field.name)
    if at < 0:
        return f'NULL::{_TYPES[field.type]} AS "{field.name}"'
    if schema.field(at).type == field.type:
        return f'"{field.name}"'
    return f'"{field.name}"::{_TYPES[field.type]} AS "{field.name}"'
