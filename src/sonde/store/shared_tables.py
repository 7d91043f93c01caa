"""The tables of a shared place, for SQL: the rows of the chosen sessions, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from sonde.errors import QueryError
from sonde.session import Session
from sonde.session.schema import Field, Schema
from sonde.session.stack_table import SAMPLES
from sonde.store import catalog
from sonde.store.combined import combine_schemas, keep_once_per_host
from sonde.store.place import SharedFile
from sonde.store.rows import ARROW_TYPES, widen
from sonde.store.shared_session import SharedSession

_ADDED = (
    Field("job", "text", True, "job id from the launcher or scheduler", ""),
    Field("session", "text", False, "id of the session", ""),
)
_FRAMES = Field("frames", "text", True, "the frames of the stack, the outermost first, with ; in "
                "between: func (file:line)", "")  # fmt: skip
_TYPES = {**ARROW_TYPES, "timestamp": pa.timestamp("us", "UTC")}
_KINDS = {kind: name for name, kind in _TYPES.items()}
_READ = 16  # footers that are read to know the columns of a table of the user's own


class SharedTables:
    """The tables of sessions in one place."""

    def __init__(self, sessions: Sequence[SharedSession]) -> None:
        self.sessions, self.place = sessions, sessions[0].place
        self._ids = {one.id for one in sessions}
        self._known: dict[str, Schema] = {}

    def list_schemas(self) -> list[Schema]:
        """Return every table, with its columns as a query sees them."""
        names = {schema.table for schema in catalog.list_tables()} | set(self.place.list_tables())
        return [self._find_schema(name) for name in sorted(names)]

    def _find_schema(self, name: str) -> Schema:
        if not self._known:
            for view in catalog.list_views():
                self._known[view.schema.table] = (
                    view.schema if view.from_tables else _add(view.schema)
                )
            for schema in catalog.list_recorded():
                self._known[schema.table] = _add(widen(schema))
        if name not in self._known:
            self._known[name] = self._read_schema(name)
        return self._known[name]

    def _read_schema(self, name: str) -> Schema:
        """Return the columns of a table of the user's own, as its files have them."""
        files: dict[str | None, SharedFile] = {}
        for file in self.place.list_files(name).choose(self._ids):
            files[file.session] = file  # of each session the newest
        found = []
        for file in list(files.values())[-_READ:]:
            with self.place.fs.open_input_file(file.path) as opened:
                found.append(pq.read_schema(opened))
        columns = combine_schemas(found)
        fields = [Field(one.name, _KINDS.get(one.type, "text"), True, "", "") for one in columns]
        return Schema(name, fields, "")

    def find_files(self, name: str) -> tuple[list[str], list[str]]:
        """Return the files of a table, as addresses; and the sessions whose rows in them count,
        if not all do."""
        listing = self.place.list_files(name)
        start = self.place.uri.partition("://")[0] + "://" if "://" in self.place.uri else "file://"
        paths = [start + file.path for file in listing.choose(self._ids)]
        return paths, sorted(self._ids) if listing.has_others(self._ids) else []

    def list_once(self, schema: Schema) -> list[str]:
        """Return the columns in which copies of a row are equal: rows about a machine come from
        each of its sessions."""
        if schema.scope != "host":
            return []
        return ["host", *(one.name for one in schema.fields[: -len(_ADDED) - 4])]

    def open(self, connection: duckdb.DuckDBPyConnection, name: str) -> duckdb.DuckDBPyRelation:
        """Return a table; its rows are read when it is scanned."""
        schema = self._find_schema(name)
        rows = connection.from_arrow(
            self.place.open_table(name, self.sessions, make_columns(schema))
        )
        if self.place.list_files(name).has_others(self._ids):
            ids = ", ".join("'" + one.replace("'", "''") + "'" for one in sorted(self._ids))
            rows = rows.filter(f'"session" IN ({ids})')
        if schema.scope == "host":
            rows = keep_once_per_host(rows, self.list_once(schema)[1:])
        return rows


def make_columns(schema: Schema) -> pa.Schema:
    """Return the columns of a table in a shared place."""
    return pa.schema([pa.field(one.name, _TYPES[one.kind]) for one in schema.fields])


def _add(schema: Schema) -> Schema:
    """Return a schema with the columns that are added when it is shipped."""
    known = {field.name for field in schema.fields}
    frames = [_FRAMES] if schema.table == SAMPLES else []
    added = [*frames, *(field for field in _ADDED if field.name not in known)]
    return Schema(schema.table, [*schema.fields, *added], schema.doc, scope=schema.scope)


def find_shared_tables(sessions: Sequence[Session]) -> SharedTables | None:
    """Return the tables of sessions in a shared place; None if they are on this machine."""
    shared = [one for one in sessions if isinstance(one, SharedSession)]
    if shared and (len(shared) < len(sessions) or len({one.place.uri for one in shared}) > 1):
        raise QueryError("ask one shared place at a time, and nothing else with it")
    return SharedTables(shared) if shared else None
