"""What is new in a recording since it was last looked at: each row once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from sonde import archive, catalog
from sonde.query import Frozen
from sonde.rows import SessionTable, arrow_schema, make_table, open_tables
from sonde.session import Session
from sonde.union import Stream, combine, shape

# The tables whose rows are taken once. The others are small, and asked as a whole.
TABLES = (
    "event.span", "event.counter", "event.marker", "event.attribute", "python.stack_sample",
    "python.gc_pause", "python.collective", "python.torch_trace", "system.cpu", "system.memory",
    "system.gpu", "system.disk", "system.network", "system.process",
)  # fmt: skip
_DEEP = ("python.torch_op", "python.torch_kernel")

Marks = dict[tuple[str, str], int]  # session and table: the first ticket that was not taken


class Fresh(Frozen):
    """A recording that holds only what came after `marks`, and stands still.

    `kept` are rows from before that are still needed, by table; `deep` are the windows of torch's
    profiler that are wanted: reading them takes long."""

    def __init__(
        self,
        sessions: Sequence[Session],
        marks: Mapping[tuple[str, str], int],
        kept: Mapping[str, pa.Table],
        deep: Collection[str],
    ) -> None:
        super().__init__(sessions, "")
        self._kept, self._deep = kept, sorted(deep)
        self.marks: Marks = dict(marks)
        self._rows: dict[str, list[pa.Table]] = {}
        for session in sessions:
            for name, table in open_tables(session).items():
                if name in TABLES:
                    self._take(session, name, table)

    def _take(self, session: Session, name: str, table: SessionTable) -> None:
        key = session.id, name
        first = self.marks.get(key, 0)
        rows, self.marks[key] = read_since(table, first)
        self._rows.setdefault(name, []).append(rows)

    @property
    def rows(self) -> int:
        """How many rows are new."""
        return sum(part.num_rows for parts in self._rows.values() for part in parts)

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

    def _open_view(self, view: catalog.View) -> Stream:
        if view.schema.table in _DEEP:
            return Stream(view.schema.table, view.columns, lambda: self._read_deep(view))
        return super()._open_view(view)

    def _read_deep(self, view: catalog.View) -> pa.Table:
        if not self._deep:
            return view.columns.empty_table()
        rows = view.read(self.sessions)
        return rows.filter(pc.is_in(rows["trace"], pa.array(self._deep, pa.string())))


def read_since(table: SessionTable, first: int) -> tuple[pa.Table, int]:
    """The rows of a table from a ticket on, and the first ticket that is not among them."""
    wanted = arrow_schema(table.schema)
    if table.ring is None:
        end = max(first, table.archived_to)
        return _read_archive(table, first, end, wanted), end
    head, capacity = table.ring.head, table.ring.capacity
    # Up to the first row that is still being written, unless it never will be.
    end = max(table.ring.find_settled(first), head - capacity // 2)
    batch = table.ring.read(first, end)
    rows = shape(make_table(table.session, table.schema, batch), wanted)
    if batch.lost:
        # Overwritten before we came: then the collector may have archived them.
        low = max(first, head - capacity)
        rows = pa.concat_tables([_read_archive(table, first, low, wanted), rows])
    return rows, end


def _read_archive(table: SessionTable, first: int, end: int, wanted: pa.Schema) -> pa.Table:
    parts = [wanted.empty_table()]
    for segment in table.segments:
        if segment.last > first and segment.first < end and segment.is_sound():
            rows = archive.read_segment(segment, wanted)
            # Tickets are not in the file. If some rows of it were lost, a few too many are skipped.
            skip = max(0, first - segment.first)
            parts.append(rows.slice(skip, max(0, min(segment.last, end) - segment.first - skip)))
    return pa.concat_tables(parts)
