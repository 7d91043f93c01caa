"""Ship one session: every archived segment, the newest rows while it runs, and its views."""

from __future__ import annotations

import io
import time
import zlib

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sonde.errors import Damaged, Error
from sonde.session import Session, stack_table
from sonde.session.shipped import NAME, ON, Shipped, ShippedTable, read_shipped
from sonde.session.stack_table import SAMPLES, Nodes
from sonde.store import archive, catalog
from sonde.store.place import SESSIONS, FleetPlace, find_day, name_file
from sonde.store.rows import SessionTable, make_table, open_tables
from sonde.store.stack_nodes import read_archived_nodes
from sonde.store.view import View

SLOW_S = 600.0  # views that take long to compute are sent this often, and more often at first
COVERED_S = 60.0  # that a file stays after its successor has come
_QUICK = (SESSIONS, "sonde.source", "event.open_span")
_STACKS = "python.stack"
_NAMELESS = 0.02  # the share of samples whose stacks are not in the place yet: not more than that
_VIEWS = tuple(view for view in catalog.list_views() if not view.from_tables)


class Shipment:
    """What has been shipped of a session, and what is to be."""

    def __init__(self, session: Session, place: FleetPlace) -> None:
        self.session, self.place = session, place
        self.shipped = read_shipped(session) or Shipped(
            to=place.uri, state=ON, since_wall_ns=time.time_ns(), tables={}
        )
        self._slow_s, self._pause_s = float("-inf"), 0.0
        self._nodes: Nodes | None = None
        self._sent_stacks: pa.Array = pa.array([], pa.int64())
        self._are_stacks_due = False

    @property
    def is_whole(self) -> bool:
        """Whether the session has ended, and all of it is in the place."""
        return self.shipped.whole

    def run(self, now_s: float, every_s: float) -> None:
        """Send what is new; raise PlaceError if the place does not take it."""
        # Looked at first: what is archived by then can no longer change.
        is_sealed = self.session.read_sealed() is not None
        for name, table in open_tables(self.session).items():
            self._ship_segments(name, table)
            if table.ring is not None:
                self._ship_newest(name, table)
        is_slow = is_sealed or now_s - self._slow_s >= self._pause_s
        if is_slow:
            self._slow_s, self._pause_s = now_s, min(SLOW_S, max(every_s, 2 * self._pause_s))
        for view in _VIEWS:
            is_due = self._are_stacks_due and view.schema.table == _STACKS
            if is_slow or is_due or view.schema.table in _QUICK:
                self._ship_view(view, is_sealed)
        self._nodes = None
        self._remove_covered(is_sealed)
        self.shipped.whole = is_sealed
        self.note(ON, None)

    def note(self, state: str, detail: str | None) -> None:
        """Write down what has been shipped, and whether that works."""
        if (state, detail) != (self.shipped.state, self.shipped.detail):
            self.shipped = self.shipped.replace(
                state=state, detail=detail, since_wall_ns=time.time_ns()
            )
        self.shipped.write(self.session.path(NAME))

    # ---- rows ----

    def _ship_segments(self, name: str, table: SessionTable) -> None:
        """Send the segments that are not there yet."""
        done = self._find_state(name)
        for segment in table.segments:
            if segment.last <= done.done:
                continue
            done.unshipped += segment.first - done.done  # retention was faster
            if segment.is_sound():
                rows = archive.read_segment(segment)
                if rows.num_rows:
                    self._send(name, rows, segment.first, segment.last, is_live=False)
            else:
                done.unshipped += segment.last - segment.first
            self._cover(done.newest)
            done.newest, done.done = None, segment.last
            done.end = max(done.end, segment.last)
            self.note(ON, None)

    def _ship_newest(self, name: str, table: SessionTable) -> None:
        """Send the rows that are in the ring alone, in place of the last file of that kind."""
        done, ring = self._find_state(name), table.ring
        assert ring is not None
        end = ring.find_new_end(done.done)
        if end <= max(done.end, done.done):
            return
        batch = ring.read(done.done, end)
        if not batch.rows:
            return
        rows = make_table(self.session, table.schema, batch)
        newest, done.newest = done.newest, self._send(name, rows, done.done, end, is_live=True)
        done.end = end
        if newest != done.newest:
            self._cover(newest)
        if name == SAMPLES:
            self._are_stacks_due = self._count_new_names(rows["stack"]) > _NAMELESS * rows.num_rows

    def _count_new_names(self, column: pa.ChunkedArray) -> int:
        """Return how many samples have a stack that is known here, and not in the place."""
        known = pc.is_in(column, pa.array(self._read_nodes().hashes, pa.int64()))
        sent = pc.is_in(column, self._sent_stacks)
        return pc.sum(pc.and_not(known, sent)).as_py() or 0

    def _find_state(self, name: str) -> ShippedTable:
        return self.shipped.tables.setdefault(name, ShippedTable(done=0))

    # ---- views ----

    def _ship_view(self, view: View, is_sealed: bool) -> None:
        """Send the rows of a view, if they are others than last time."""
        name = view.schema.table
        try:
            rows = view.read_session(self.session)
        except Damaged:
            return  # what is damaged is lost; the rest of the session is not
        done = self._find_state(name)
        if name == _STACKS:
            self._sent_stacks, self._are_stacks_due = rows["stack"].combine_chunks(), False
        data = _write(self._complete(name, rows))
        check = zlib.crc32(data)
        # A session tells with each shipment that it still runs.
        is_same = check == done.end and name != SESSIONS
        is_final = done.newest is not None and ".live." not in done.newest
        is_empty = not rows.num_rows and done.newest is None
        if is_empty or (is_same and (is_final or not is_sealed)):
            return
        file = name_file(self.session.id, 0, time.time_ns(), not is_sealed)
        path = self.place.path(name, find_day(self.session.start_wall_ns // 1000), file)
        self._write_file(path, data)
        self._cover(done.newest)
        done.newest, done.end = path, check

    # ---- files ----

    def _cover(self, path: str | None) -> None:
        """Note that a file has a successor. It is not removed yet: a thousand ranks would replace
        files faster than a long query can read them."""
        if path is not None:
            self.shipped.covered = {**(self.shipped.covered or {}), path: time.time_ns()}

    def _remove_covered(self, is_sealed: bool) -> None:
        """Remove the files that have had a successor for a while; in the end, all of them."""
        now_ns = time.time_ns()
        known = self.shipped.covered or {}
        for path, since_ns in list(known.items()):
            if is_sealed or not 0 <= now_ns - since_ns < COVERED_S * 1e9:
                self.place.remove(path)
                del known[path]

    def _send(self, name: str, rows: pa.Table, first: int, last: int, is_live: bool) -> str:
        day = find_day(rows["ts"][0].value)
        path = self.place.path(name, day, name_file(self.session.id, first, last, is_live))
        self._write_file(path, _write(self._complete(name, rows)))
        return path

    def _write_file(self, path: str, data: bytes) -> None:
        """Write a file into the place. Until that is done, it is noted as one to be removed: if
        this process is killed meanwhile, nobody else would know of the file."""
        self._cover(path)
        self.shipped.write(self.session.path(NAME))
        self.place.write(path, data)
        assert self.shipped.covered is not None
        del self.shipped.covered[path]

    def _complete(self, name: str, rows: pa.Table) -> pa.Table:
        """Return rows with all that they need to be understood without any other file."""
        if name == SAMPLES:
            rows = rows.append_column("frames", self._name_stacks(rows["stack"]))
        for column, value in (("job", self.session.meta.job), ("session", self.session.id)):
            if column not in rows.column_names:
                at = pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows)
                texts = pa.DictionaryArray.from_arrays(at, pa.array([value], pa.string()))
                rows = rows.append_column(column, texts)
        return rows

    def _name_stacks(self, column: pa.ChunkedArray) -> pa.Array:
        """Return the frames of each stack as one text, the outermost first."""
        nodes = self._read_nodes()
        places = {number: at for at, number in enumerate(nodes.hashes)}
        known = pc.unique(column)
        words: dict[int, str] = {}  # one text for each node, however many stacks have it

        def name(at: int) -> str:
            if at not in words:
                file = nodes.text(nodes.files[at])
                words[at] = f"{nodes.text(nodes.funcs[at])} ({file}:{nodes.lines[at]})"
            return words[at]

        chains = [list(nodes.walk(places.get(number, -1))) for number in known.to_pylist()]
        texts = [";".join(map(name, reversed(chain))) or None for chain in chains]
        at = pc.index_in(column, known).combine_chunks()
        return pa.DictionaryArray.from_arrays(at, pa.array(texts, pa.string()))

    def _read_nodes(self) -> Nodes:
        if self._nodes is None:
            try:
                self._nodes = stack_table.read_nodes(self.session)
            except FileNotFoundError:
                self._nodes = _read_archived(self.session)
        return self._nodes


def _read_archived(session: Session) -> Nodes:
    try:
        return read_archived_nodes(session)
    except Error:
        return Nodes.make_empty()


def _write(rows: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd", compression_level=1, store_schema=False)
    return buffer.getvalue()
