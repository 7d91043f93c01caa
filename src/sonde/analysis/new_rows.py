"""The rows that a recording has gained since the last time: each of them once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from sonde.analysis import timeline_sql
from sonde.errors import Damaged
from sonde.session import Session
from sonde.store.combined import LazyTable, combine_schemas, fit_columns
from sonde.store.recording import FrozenRecording
from sonde.store.rows import SessionTable, arrow_schema, open_tables
from sonde.store.tail import read_since
from sonde.store.view import View
from sonde.store.views import events, torch_captures

# The tables whose rows are taken once. The others are small and read completely every time.
TABLES = (
    "event.span", "event.counter", "event.marker", "event.attribute", "python.stack_sample",
    "python.gc_pause", "python.collective", "python.torch_trace", "python.operator", "system.cpu",
    "system.memory", "system.gpu", "system.disk", "system.network", "system.process",
)  # fmt: skip
_TRIES = 5
_CAPTURED = ("python.torch_op", "python.torch_kernel")

Tickets = dict[tuple[str, str], int]  # by session and table: the first ticket not yet taken


class NewRows(FrozenRecording):
    """A frozen recording that contains only the rows from `tickets` on.

    `kept` are rows from before that are still needed, by table; `captures` are those of torch's
    profiler that are wanted: reading them takes long; tables of `without` have no rows."""

    def __init__(
        self,
        sessions: Sequence[Session],
        tickets: Mapping[tuple[str, str], int],
        kept: Mapping[str, pa.Table],
        captures: Collection[str],
        without: Collection[str] = (),
    ) -> None:
        super().__init__(sessions, " ".join(timeline_sql.TABLES))
        self._wanted = [name for name in TABLES if name not in without]
        self._kept, self._captures = kept, sorted(captures)
        for tried in range(_TRIES):
            self.tickets: Tickets = dict(tickets)
            self._rows: dict[str, list[pa.Table]] = {}
            try:
                self._unfinished = self._take_all()
                break
            except FileNotFoundError as error:
                # The collector is sealing an ended session: in a moment the archive has everything.
                if tried == _TRIES - 1:
                    raise Damaged(f"{error.filename} is gone; try again") from None

    def _take_all(self) -> pa.Table:
        """Take the new rows; return the regions that have not ended."""
        for session in self.sessions:
            for name, table in open_tables(session).items():
                if name in self._wanted:
                    self._take(session, name, table)
        # After the rows: a region that ended meanwhile must not seem to go on.
        return events.OPEN_SPAN.read(self.sessions)

    def _take(self, session: Session, name: str, table: SessionTable) -> None:
        key = session.id, name
        first = self.tickets.get(key, 0)
        rows, self.tickets[key] = read_since(table, first)
        self._rows.setdefault(name, []).append(rows)

    def find_empty(self) -> set[str]:
        """Return the tables that have no new rows."""
        return {name for name in TABLES if not any(p.num_rows for p in self._rows.get(name, []))}

    def _open_table(
        self, connection: duckdb.DuckDBPyConnection, tables: list[SessionTable], verified: bool
    ) -> tuple[duckdb.DuckDBPyRelation, LazyTable]:
        name = tables[0].schema.table
        if name not in TABLES:
            return super()._open_table(connection, tables, verified)
        wanted = combine_schemas([arrow_schema(table.schema) for table in tables])
        parts = [*self._rows.get(name, []), *([self._kept[name]] if name in self._kept else [])]
        whole = pa.concat_tables(
            [wanted.empty_table(), *(fit_columns(part, wanted) for part in parts)]
        )
        stream = LazyTable(name, wanted, lambda: whole)
        return connection.from_arrow(stream), stream

    def _wants(self, name: str) -> bool:
        return name in timeline_sql.TABLES

    def _open_view(self, view: View) -> LazyTable:
        if view is events.OPEN_SPAN:
            return LazyTable(view.schema.table, view.columns, lambda: self._unfinished)
        if view.schema.table in _CAPTURED:
            return LazyTable(view.schema.table, view.columns, lambda: self._read_captured(view))
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
