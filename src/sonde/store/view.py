"""Views: tables that are computed from a session's files when a query names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from sonde.session import Session
from sonde.session.schema import Field, Schema
from sonde.store import archive
from sonde.store.rows import ARROW_TYPES
from sonde.store.shared_session import SharedSession

Column = tuple[str, str, str, str]  # name, kind, unit, meaning
Columns = Mapping[str, Sequence[object]]
Row = Mapping[str, object]

_PROCESS = (
    ("host", "text", "", "machine"),
    ("pid", "i64", "", "process"),
    ("rank", "i64", "", "rank in its job; NULL if it has none"),
)


def make_view_schema(
    table: str, doc: str, columns: Sequence[Column], added: Sequence[Column] = _PROCESS
) -> Schema:
    """Return the schema of a view: its own columns, then host, pid and rank."""
    fields = [Field(name, kind, True, text, unit) for name, kind, unit, text in (*columns, *added)]
    return Schema(table, fields, doc)


class View:
    """A table that is computed one session at a time.

    `compute` returns the view's own columns for one session. With `is_archived` the rows of a
    sealed session come from its archive: the files they were computed from are gone. With
    `from_tables` it needs other tables and nothing else; any other view is shipped as a table."""

    def __init__(
        self,
        schema: Schema,
        compute: Callable[[Session], Columns],
        *,
        is_archived: bool = False,
        from_tables: bool = False,
    ) -> None:
        self.schema, self._compute, self._is_archived = schema, compute, is_archived
        self.from_tables = from_tables
        self.columns = pa.schema([pa.field(f.name, ARROW_TYPES[f.kind]) for f in schema.fields])

    def read(self, sessions: Sequence[Session]) -> pa.Table:
        """Return the rows of these sessions, live or ended."""
        shared = [one for one in sessions if isinstance(one, SharedSession)]
        if shared and not self.from_tables:
            return shared[0].place.read_table(self.schema.table, shared, self.columns)
        parts = [self.read_session(session) for session in sessions]
        return pa.concat_tables([self.columns.empty_table(), *parts])

    def read_session(self, session: Session) -> pa.Table:
        """Return the rows of one session."""
        if isinstance(session, SharedSession) and not self.from_tables:
            return self.read([session])
        if not self._is_archived:
            return self.compute_table(session)
        try:
            return self._read_either(session)
        except FileNotFoundError:  # sealed a moment ago
            return self._read_either(session)

    def _read_either(self, session: Session) -> pa.Table:
        if session.read_sealed() is not None:
            segments = archive.list_segments(session, self.schema.table)
            parts = [archive.read_segment(s, self.columns) for s in segments if s.is_sound()]
            if parts:
                return pa.concat_tables(parts)
        return self.compute_table(session)

    def compute_table(self, session: Session) -> pa.Table:
        """Compute the rows of a session that is not sealed."""
        found = self._compute(session)
        rows = len(next(iter(found.values()))) if found else 0
        process = {"host": encode(session.host), "pid": session.pid, "rank": session.rank}
        whole = {**found, **{name: [value] * rows for name, value in process.items()}}
        arrays = [pa.array(whole.get(f.name, ()), f.type) for f in self.columns]
        return pa.table(arrays, schema=self.columns)


def view_of_rows(
    table: str,
    doc: str,
    read_rows: Callable[[Session], Iterable[Row]],
    *columns: Column,
    from_tables: bool = False,
) -> View:
    """Return a view whose rows are made one by one; a column that a row does not name is NULL."""
    names = [name for name, *_ in columns]

    def compute(session: Session) -> Columns:
        found: dict[str, list[object]] = {name: [] for name in names}
        for row in read_rows(session):
            for name, values in found.items():
                values.append(row.get(name))
        return found

    return View(make_view_schema(table, doc, columns), compute, from_tables=from_tables)


def encode(value: object) -> object:
    """Return text as UTF-8 can hold it: a command line may contain any bytes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value
