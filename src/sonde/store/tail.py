"""The new rows of a table: rows since a ticket, each of them once.

Arrow is loaded only where rows are wanted as Arrow: live views read numbers many times a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sonde.session import stack_table
from sonde.session.ring import Batch, Ring

if TYPE_CHECKING:
    import pyarrow as pa

    from sonde.store.rows import SessionTable


class RingTail:
    """Hands out the rows of a ring from a ticket on, each once."""

    def __init__(self, ring: Ring, next_ticket: int = 0) -> None:
        self.ring = ring
        self.next_ticket = next_ticket  # the first one that was not handed out

    def read(self) -> Batch:
        """Return the rows that are complete by now; `lost` counts those that came too late."""
        end = self.ring.find_new_end(self.next_ticket)
        batch = self.ring.read(self.next_ticket, end)
        self.next_ticket = end
        return batch

    def read_columns(self) -> list[list[int]]:
        """Return the same as columns of numbers; see stack_table.read_columns."""
        return stack_table.read_columns(self.ring, self.read())


def read_since(table: SessionTable, first: int) -> tuple[pa.Table, int]:
    """Return the rows of a table from a ticket on, and the first ticket that is not among them.

    Rows that the ring has lost meanwhile are read from the archive."""
    import pyarrow as pa

    from sonde.store.combined import fit_columns
    from sonde.store.rows import arrow_schema, make_table

    wanted = arrow_schema(table.schema)
    if table.ring is None:
        end = max(first, table.archived_to)
        return _read_archive(table, first, end, wanted), end
    oldest = max(first, table.ring.head - table.ring.capacity)
    tail = RingTail(table.ring, first)
    batch = tail.read()
    rows = fit_columns(make_table(table.session, table.schema, batch), wanted)
    if batch.lost:
        rows = pa.concat_tables([_read_archive(table, first, oldest, wanted), rows])
    return rows, tail.next_ticket


def _read_archive(table: SessionTable, first: int, end: int, wanted: pa.Schema) -> pa.Table:
    import pyarrow as pa

    from sonde.store import archive

    parts = [wanted.empty_table()]
    for segment in table.segments:
        if segment.last > first and segment.first < end and segment.is_sound():
            rows = archive.read_segment(segment, wanted)
            # A file has no tickets: if some of its rows were lost, a few too many are skipped.
            skip = max(0, first - segment.first)
            parts.append(rows.slice(skip, max(0, min(segment.last, end) - segment.first - skip)))
    return pa.concat_tables(parts)
