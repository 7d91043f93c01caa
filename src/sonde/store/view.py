"""Views: tables that are computed from a session's files when a query names them."""

from __future__ import annotations

import os
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
# What reads the rows of archived files, in these columns.
ReadFiles = Callable[[Sequence[archive.Segment], pa.Schema], pa.Table]

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
    sealed session come from its archive: the files they were computed from are gone. Where there
    is none of `files`, if they are given, there are no rows to compute. With `from_tables` it needs
    other tables and nothing else; any other view is shipped as a table."""

    def __init__(
        self,
        schema: Schema,
        compute: Callable[[Session], Columns],
        *,
        is_archived: bool = False,
        from_tables: bool = False,
        files: Sequence[str] = (),
    ) -> None:
        self.schema, self._compute, self._is_archived = schema, compute, is_archived
        self.from_tables, self._files = from_tables, files
        self.columns = pa.schema([pa.field(f.name, ARROW_TYPES[f.kind]) for f in schema.fields])

    def read(
        self, sessions: Sequence[Session], read_files: ReadFiles = archive.read_segments
    ) -> pa.Table:
        """Return the rows of these sessions, live or ended. `read_files` reads those of many
        archives at once."""
        shared = [one for one in sessions if isinstance(one, SharedSession)]
        if shared and not self.from_tables:
            return shared[0].place.read_table(self.schema.table, shared, self.columns)
        parts, files = list[pa.Table](), list[archive.Segment]()
        for session in sessions:
            found = self._list_archived(session)
            files += found
            if not found and self._may_compute(session):
                parts.append(self.read_session(session))
        return pa.concat_tables([read_files(files, self.columns), *parts])

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
        files = self._list_archived(session)
        return archive.read_segments(files, self.columns) if files else self.compute_table(session)

    def _list_archived(self, session: Session) -> list[archive.Segment]:
        """Return the intact files that have the rows of a sealed session."""
        if not self._is_archived or session.read_sealed() is None:
            return []
        return [s for s in archive.list_segments(session, self.schema.table) if s.is_sound()]

    def _may_compute(self, session: Session) -> bool:
        """Tell whether there may be rows of a session that has none in its archive."""
        is_open = not self._files or session.read_sealed() is None
        return is_open or any(os.path.exists(session.path(name)) for name in self._files)

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
