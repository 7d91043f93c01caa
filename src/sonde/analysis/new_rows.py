"""What is new in a recording since it was last looked at: each row once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from sonde.analysis import timeline_sql
from sonde.errors import Damaged
from sonde.session import Session
from sonde.store.recording import Frozen
from sonde.store.rows import SessionTable, arrow_schema, open_tables
from sonde.store.tail import read_since
from sonde.store.union import Stream, combine, shape
from sonde.store.view import View
from sonde.store.views import events, torch_captures

# The tables whose rows are taken once. The others are small, and asked as a whole.
TABLES = (
    "event.span", "event.counter", "event.marker", "event.attribute", "python.stack_sample",
    "python.gc_pause", "python.collective", "python.torch_trace", "system.cpu", "system.memory",
    "system.gpu", "system.disk", "system.network", "system.process",
)  # fmt: skip
_TRIES = 5
_CAPTURED = ("python.torch_op", "python.torch_kernel")

Marks = dict[tuple[str, str], int]  # session and table: the first ticket that was not taken


class Fresh(Frozen):
    """A recording that holds only what came after `marks`, and stands still.

    `kept` are rows from before that are still needed, by table; `captures` are those of torch's
    profiler that are wanted: reading them takes long; tables of `without` have no rows."""

    def __init__(
        self,
        sessions: Sequence[Session],
        marks: Mapping[tuple[str, str], int],
        kept: Mapping[str, pa.Table],
        captures: Collection[str],
        without: Collection[str] = (),
    ) -> None:
        super().__init__(sessions, " ".join(timeline_sql.TABLES))
        self._wanted = [name for name in TABLES if name not in without]
        self._kept, self._captures = kept, sorted(captures)
        for tried in range(_TRIES):
            self.marks: Marks = dict(marks)
            self._rows: dict[str, list[pa.Table]] = {}
            try:
                self._unfinished = self._take_all()
                break
            except FileNotFoundError as error:
                # The collector is sealing an ended session: the archive has it all in a moment.
                if tried == _TRIES - 1:
                    raise Damaged(f"{error.filename} is gone; try again") from None

    def _take_all(self) -> pa.Table:
        """Take the rows; returns the regions that have not ended."""
        for session in self.sessions:
            for name, table in open_tables(session).items():
                if name in self._wanted:
                    self._take(session, name, table)
        # Behind the rows: one that ended meanwhile must not look as if it went on.
        return events.OPEN_SPAN.read(self.sessions)

    def _take(self, session: Session, name: str, table: SessionTable) -> None:
        key = session.id, name
        first = self.marks.get(key, 0)
        rows, self.marks[key] = read_since(table, first)
        self._rows.setdefault(name, []).append(rows)

    def find_empty(self) -> set[str]:
        """The tables that have nothing new."""
        return {name for name in TABLES if not any(p.num_rows for p in self._rows.get(name, []))}

    def _open_table(
        self, connection: duckdb.DuckDBPyConnection, tables: list[SessionTable], verified: bool
    ) -> tuple[duckdb.DuckDBPyRelation, Stream]:
        name = tables[0].schema.table
        if name not in TABLES:
            return super()._open_table(connection, tables, verified)
        wanted = combine([arrow_schema(table.schema) for table in tables])
        parts = [*self._rows.get(name, []), *([self._kept[name]] if name in self._kept else [])]
        whole = pa.concat_tables([wanted.empty_table(), *(shape(part, wanted) for part in parts)])
        stream = Stream(name, wanted, lambda: whole)
        return connection.from_arrow(stream), stream

    def _wants(self, name: str) -> bool:
        return name in timeline_sql.TABLES

    def _open_view(self, view: View) -> Stream:
        if view is events.OPEN_SPAN:
            return Stream(view.schema.table, view.columns, lambda: self._unfinished)
        if view.schema.table in _CAPTURED:
            return Stream(view.schema.table, view.columns, lambda: self._read_captured(view))
        return super()._open_view(view)

    def _read_captured(self, view: View) -> pa.Table:
        if not self._captures:
            return view.columns.empty_table()
        rows = view.read(self.sessions)
        return rows.filter(pc.is_in(rows["capture"], pa.array(self._captures, pa.string())))


def list_captures(sessions: Sequence[Session]) -> set[str]:
    """Return the captures that are complete."""
    rows = torch_captures.CAPTURE.read(sessions).select(["capture", "state"]).to_pylist()
    return {row["capture"] for row in rows if row["state"] == "done"}
