"""The tables of this process and their writers."""

from __future__ import annotations

from collections.abc import Callable

from sonde import _core
from sonde.errors import SchemaError
from sonde.session.schema import Schema, make_schema, name_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sonde.session.writer import SessionWriter

# Schemas that are sonde's or DuckDB's own; a user's table lives in any other.
RESERVED = frozenset(
    ("sonde", "python", "system", "event", "main", "temp", "memory", "information_schema",
     "pg_catalog")
)  # fmt: skip


class _OpenTable:
    __slots__ = ("hint_bytes", "schema", "writer")

    def __init__(self, schema: Schema, hint_bytes: int | None) -> None:
        self.schema, self.hint_bytes = schema, hint_bytes
        try:
            self.writer = _core.Writer(schema.kinds, schema.optional, schema.timed)
        except ValueError as error:
            raise SchemaError(f"{schema.table}: {error}") from None


class TableWriters:
    """One writer for each table, made once. Between two sessions, writers write nowhere.

    `make_opener(table)` makes what is called when a row comes for a table that has no ring yet."""

    def __init__(self, make_opener: Callable[[str], Callable[[], object]]) -> None:
        self._tables: dict[str, _OpenTable] = {}
        self._make_opener = make_opener

    def open(
        self, row: type, name: str, session: SessionWriter | None, *, soon: bool
    ) -> _core.Writer:
        """Return the writer of a table: the same one each time, across stop, start and fork.

        `soon`: there is no session yet, but the first row begins one."""
        schema = make_schema(row, name)
        known = self._tables.get(name)
        if known is not None:
            if known.schema.dump() != schema.dump():
                raise SchemaError(f"{name} exists with other columns; give the new one a name")
            return known.writer
        table = self._tables[name] = _OpenTable(schema, getattr(row, "RING_BYTES", None))
        self._prepare(table, session, soon)
        return table.writer

    def prepare(self, session: SessionWriter | None, *, soon: bool = False) -> None:
        """Have the rows of every table written to this session; see `open`."""
        for table in self._tables.values():
            self._prepare(table, session, soon)

    def detach(self) -> None:
        """Have all writers write nowhere."""
        for table in self._tables.values():
            table.writer.detach()

    def _prepare(self, table: _OpenTable, session: SessionWriter | None, soon: bool) -> None:
        """Small rings, which are ours, are made now; large ones when their first row comes."""
        if session is None and not soon:
            table.writer.detach()
        elif table.hint_bytes is not None and session is not None:
            self._attach(table, session)
        else:
            table.writer.later(self._make_opener(table.schema.table))

    def attach(self, name: str, session: SessionWriter) -> None:
        """Make the ring of a table, unless another thread was first."""
        table = self._tables[name]
        if not table.writer.attached:
            self._attach(table, session)

    def _attach(self, table: _OpenTable, session: SessionWriter) -> None:
        name = table.schema.table
        try:
            ring = session.create_ring(table.schema, table.hint_bytes)
        except (OSError, SchemaError) as error:
            session.log(f"{name} is not recorded: {error}")
            table.writer.detach()
            return
        # What became of a source is written down even while recording is paused.
        page = None if name == "sonde.source_log" else session.page
        table.writer.attach(ring, session.text, page)


def name_user_table(row: type, name: str | None) -> str:
    """Return the name of a table of the program's own: `job.batch` for `Batch`, unless named."""
    name = name or name_table(row, "job")
    if name.partition(".")[0] in RESERVED:
        raise SchemaError(f"{name}: that schema is taken; use job.{name.rpartition('.')[2]}, say")
    return name
