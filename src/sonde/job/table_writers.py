"""The tables of this process and their writers."""

from __future__ import annotations

from sonde import _core
from sonde.errors import SchemaError
from sonde.session.schema import RESERVED, Schema, make_schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sonde.session.writer import SessionWriter


Row = type | Schema  # what names the columns of a table


def is_ours(table: str) -> bool:
    """Tell whether a table is one of sonde's own, and not the program's."""
    return table.partition(".")[0] in RESERVED


class _OpenTable:
    __slots__ = ("hint_bytes", "schema", "writer")

    def __init__(self, schema: Schema, hint_bytes: int | None) -> None:
        self.schema, self.hint_bytes = schema, hint_bytes
        try:
            self.writer = _core.Writer(
                schema.kinds, schema.optional, schema.timed, guest=not is_ours(schema.table)
            )
        except ValueError as error:
            raise SchemaError(f"{schema.table}: {error}") from None


class TableWriters:
    """One writer for each table, created once. Between two sessions, writers drop their rows.

    `make_opener(table)` returns the function that a table's first row calls to create its ring."""

    def __init__(self, make_opener: Callable[[str], Callable[[], object]]) -> None:
        self._tables: dict[str, _OpenTable] = {}
        self._make_opener = make_opener

    def open(
        self, row: Row, name: str, session: SessionWriter | None, *, soon: bool
    ) -> _core.Writer:
        """Return the writer of a table: always the same one, across stop, start and fork.

        `soon` means that there is no session yet, but that the first row begins one."""
        schema = row if isinstance(row, Schema) else make_schema(row, name)
        known = self._tables.get(name)
        if known is not None:
            if known.schema.dump() != schema.dump():
                raise SchemaError(f"{name} exists with other columns; give the new table a name")
            return known.writer
        table = self._tables[name] = _OpenTable(schema, getattr(row, "RING_BYTES", None))
        self._prepare(table, session, soon)
        return table.writer

    def prepare(self, session: SessionWriter | None, *, soon: bool = False) -> None:
        """Have the rows of every table written to this session; see `open`."""
        for table in self._tables.values():
            self._prepare(table, session, soon)

    def detach(self, *, soon: bool) -> None:
        """Have all writers drop their rows, but not those of the program's own tables if a session
        is to begin soon."""
        for name, table in self._tables.items():
            self._prepare(table, None, soon and not is_ours(name))

    def _prepare(self, table: _OpenTable, session: SessionWriter | None, soon: bool) -> None:
        """Connect a table to the session. Small rings, which are our own, are created now; large
        ones when their first row comes."""
        if session is None and not soon:
            table.writer.detach()
        elif table.hint_bytes is not None and session is not None:
            self._attach(table, session)
        else:
            table.writer.later(self._make_opener(table.schema.table))

    def attach(self, name: str, session: SessionWriter) -> None:
        """Create the ring of a table, unless another thread has done so."""
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
        # The states of sources are recorded even while recording is paused.
        page = None if name == "sonde.source_log" else session.page
        table.writer.attach(ring, session.text, page)
