"""Move rows from rings to the archive, merge small files, and seal ended sessions."""

from __future__ import annotations

import os
import threading
import time

from sonde import _core
from sonde.errors import Damaged
from sonde.session import Session, crash_file, stack_table, texts
from sonde.session.ending import find_end_wall_ns
from sonde.session.files import (
    EVENT_TOTALS,
    HEAP_NODES,
    MACHINE_CODE,
    NODES,
    SEALED,
    remove_quietly,
)
from sonde.session.last_stacks import write_last_stacks
from sonde.session.missing_names import count_missing
from sonde.session.records import Sealed, SealedTable
from sonde.session.ring import Ring, map_file
from sonde.session.shipped import read_shipped
from sonde.store import archive
from sonde.store.rows import SessionTable, make_table
from sonde.store.views import events, heap, stacks


class Drain:
    """One ring whose rows go into the archive."""

    def __init__(self, session: Session, path: str) -> None:
        self.session = session
        self.ring = Ring(path)
        self.table = self.ring.schema.table
        archive.remove_leftovers(session, self.table)
        segments = archive.list_segments(session, self.table)
        self.next = segments[-1].last if segments else 0
        self.capacity = self.ring.count("capacity")
        has_spare = self.ring.count("spare") > 0
        self._written = map_file(path, writable=True) if has_spare else None
        self._publish_progress()
        self._since_s: float | None = None  # when a row was first seen waiting

    def run(self, now_s: float, every_s: float, ended: bool) -> int:
        """Archive if a quarter of the ring waits, if a row has waited too long, or at the end.

        Return how many bytes were added to the archive."""
        head = self.ring.head
        waiting = head - self.next
        if waiting <= 0:
            self._since_s = None
            return 0
        if self._since_s is None:
            self._since_s = now_s
        if ended or waiting >= self.capacity // 4 or now_s - self._since_s >= every_s:
            self._since_s = None
            return self._archive(head if ended else self.ring.find_new_end(self.next))
        return 0

    def _archive(self, end: int) -> int:
        added = 0
        # Not store.tail.RingTail: rows that could not be archived (a full disk) are read again.
        batch = self.ring.read(self.next, end)
        if batch.rows:
            rows = make_table(self.session, self.ring.schema, batch)
            path = archive.write_segment(
                self.session, self.table, rows, self.next, end, batch.corrupt
            )
            added = os.stat(path).st_size
        self.next = end
        self._publish_progress()
        self._merge()
        return added

    def _publish_progress(self) -> None:
        """Tell the job how far its rows are archived, so that it knows whether we keep up."""
        if self._written is not None:
            _core.ring_archived(self._written, self.next)

    def _merge(self) -> None:
        segments = archive.list_segments(self.session, self.table)
        if self.session.read_config()["archive.to"]:
            # A segment has the same rows and the same name there until it has arrived.
            shipped = read_shipped(self.session)
            known = None if shipped is None else shipped.tables.get(self.table)
            segments = [part for part in segments if known and part.last <= known.done]
        parts = archive.find_merge(segments)
        # In a thread, because merging takes longer than a ring takes to fill.
        if parts and archive.changing.acquire(blocking=False):
            threading.Thread(target=_merge, args=(parts,), daemon=True).start()


def _merge(parts: list[archive.Segment]) -> None:
    try:
        archive.merge(parts)
    except OSError:
        pass  # the disk is full: the parts stay as they are
    finally:
        archive.changing.release()


def seal(session: Session) -> None:
    """Write how a session ended, then remove its rings and its text table.

    Every row is in the archive by then, with its texts."""
    state = session.find_state()
    if state == "running" or not session.read_config()["archive"]:
        return
    tables = {}
    rings = session.find_rings()
    if session.read_sealed() is not None:
        return  # another collector was faster, and is about to remove the rings or has done so
    for path in rings:
        ring = Ring(path)
        table = SessionTable(session, ring.schema, ring)
        if ring.read(table.archived_to).rows:
            return  # a full disk kept rows from being archived: the rings stay
        tables[table.schema.table] = SealedTable(
            schema=ring.schema.dump().decode(),
            head=ring.count("head"),
            dropped=ring.count("dropped"),
            misfit=ring.count("misfit"),
            text_lost=ring.count("text_lost"),
            unfinished=ring.read(max(0, ring.head - ring.capacity)).pending,
        )
    _archive_stacks(session)
    _archive_events(session)
    write_last_stacks(session)
    Sealed(
        state=state,
        end_wall_ns=find_end_wall_ns(session),
        sealed_wall_ns=time.time_ns(),
        tables=tables,
        **count_missing(session),
    ).write(session.path(SEALED))
    done = (NODES, HEAP_NODES, EVENT_TOTALS, MACHINE_CODE, crash_file.NAME, texts.NAME)
    for path in [*rings, *map(session.path, done)]:
        remove_quietly(path)
    for name in archive.list_tables(session):
        archive.remove_leftovers(session, name)


def _archive_stacks(session: Session) -> None:
    """Archive the trees of stacks with their texts, once: they can no longer change."""
    for view, is_there in ((stacks.STACK, stack_table.has_nodes(session)), (heap.HEAP, False)):
        table = view.schema.table
        if archive.list_segments(session, table):
            continue
        rows = view.compute_table(session)
        if is_there or rows.num_rows:
            archive.write_segment(session, table, rows, 0, max(1, rows.num_rows), 0)


def _archive_events(session: Session) -> None:
    """Archive the sums of events and the regions open at the end, with their texts."""
    for view in events.VIEWS:
        if archive.list_segments(session, view.schema.table):
            continue
        try:
            rows = view.compute_table(session)
        except Damaged:
            return  # what is damaged is lost; the rest of the session is not
        if rows.num_rows:
            archive.write_segment(session, view.schema.table, rows, 0, rows.num_rows, 0)
