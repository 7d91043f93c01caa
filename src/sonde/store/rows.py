"""The rows of one table of one session: live ones from the ring, archived ones from Parquet."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache

import pyarrow as pa

from sonde import _core
from sonde.errors import Damaged
from sonde.session import Session
from sonde.session import texts as intern
from sonde.session.records import Sealed
from sonde.session.ring import SUFFIX, Batch, Ring
from sonde.session.schema import Field, Schema, load_schema
from sonde.session.shipped import read_shipped
from sonde.store import archive
from sonde.store.shared_session import SharedSession, SharedTable

ARROW_TYPES = {
    "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(), "u8": pa.uint8(),
    "u16": pa.uint16(), "u32": pa.uint32(), "u64": pa.uint64(), "f64": pa.float64(),
    "bool": pa.bool_(), "text": pa.string(),
}  # fmt: skip
_ADDED = (
    pa.field("ts", pa.timestamp("us", "UTC")),
    pa.field("host", pa.string()),
    pa.field("pid", pa.int64()),
    pa.field("rank", pa.int64()),
)
_ADDED_FIELDS = (
    Field("ts", "timestamp", False, "wall clock time, UTC, microseconds", ""),
    Field("host", "text", False, "machine", ""),
    Field("pid", "i64", True, "process; NULL in tables about the machine", ""),
    Field("rank", "i64", True, "rank in its job; NULL if it has none", ""),
)


def widen(schema: Schema) -> Schema:
    """Return the schema of a recorded table as a query sees it: with ts, host, pid and rank."""
    fields = [*schema.fields, *_ADDED_FIELDS]
    return Schema(schema.table, fields, schema.doc, scope=schema.scope)


@lru_cache(maxsize=512)
def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the columns of a table as a query sees them: its own, then ts, host, pid and rank."""
    own = [pa.field(field.name, ARROW_TYPES[field.kind]) for field in schema.fields]
    return pa.schema([*own, *_ADDED])


class SessionTable:
    """One table of one session."""

    def __init__(self, session: Session, schema: Schema, ring: Ring | None) -> None:
        self.session, self.schema, self.ring = session, schema, ring
        self.segments = archive.list_segments(session, schema.table)

    @classmethod
    def make_empty(cls, session: Session, schema: Schema) -> SessionTable:
        """Return a table that has columns and no rows, whatever the session has of that name."""
        table = cls(session, schema, None)
        table.segments = []
        return table

    @property
    def archived_to(self) -> int:
        """The first ticket that is not in the archive."""
        return self.segments[-1].last if self.segments else 0

    def count_at_most(self) -> int:
        """Return how many rows it has, or more: some were lost before they were kept."""
        live = 0 if self.ring is None else max(0, self.ring.head - self.archived_to)
        return live + sum(part.last - part.first for part in self.segments)

    def list_sound(self) -> list[archive.Segment]:
        """Return the intact segments; the rows of the others count as corrupt."""
        return [segment for segment in self.segments if segment.is_sound()]

    def read_live(self) -> pa.Table:
        """Return every row from `archived_to` on, as of now."""
        if self.ring is None:
            return arrow_schema(self.schema).empty_table()
        batch = self.ring.read(self.archived_to)
        try:
            rows = make_table(self.session, self.schema, batch)
        except FileNotFoundError:
            if self.session.read_sealed() is None:
                raise
            return self._read_late()  # sealed since the ring was opened: all rows are archived
        missed = self._list_late() if batch.lost else []
        if missed:
            rows = self._join(missed)
        return rows

    def _list_late(self) -> list[archive.Segment]:
        """Return what the collector has archived since the segments were listed."""
        late = archive.list_segments(self.session, self.schema.table)
        return [part for part in late if part.first >= self.archived_to]

    def _read_late(self) -> pa.Table:
        wanted = arrow_schema(self.schema)
        parts = [archive.read_segment(part, wanted) for part in self._list_late()]
        return pa.concat_tables([wanted.empty_table(), *parts])

    def _join(self, missed: list[archive.Segment]) -> pa.Table:
        assert self.ring is not None
        wanted = arrow_schema(self.schema)
        parts = [archive.read_segment(part, wanted) for part in missed]
        rest = make_table(self.session, self.schema, self.ring.read(missed[-1].last))
        return pa.concat_tables([*parts, rest.cast(wanted)])


def make_table(session: Session, schema: Schema, batch: Batch) -> pa.Table:
    """Return rows of a ring as Arrow: buffers as they are, texts as a dictionary."""
    columns = []
    texts: list[str | None] | None = None
    for index, field in enumerate(schema.fields):
        data, valid = batch.buffers[2 * index], batch.buffers[2 * index + 1]
        assert data is not None
        buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(data)]
        if field.kind == "text":
            if texts is None:
                # Read after the rows: a text is written before any row that names it.
                texts = intern.read_texts(session.folder)
            places = pa.Array.from_buffers(pa.int32(), batch.rows, buffers)
            columns.append(_make_texts(places, texts, batch.top_text))
        else:
            columns.append(pa.Array.from_buffers(ARROW_TYPES[field.kind], batch.rows, buffers))
    return pa.table(
        [*columns, *_make_added(session, schema, batch)], schema=_with_dictionaries(schema)
    )


def _with_dictionaries(schema: Schema) -> pa.Schema:
    coded = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [pa.field(f.name, coded if f.type == pa.string() else f.type) for f in arrow_schema(schema)]
    )


def _make_texts(places: pa.Array, texts: list[str | None], top_text: int) -> pa.Array:
    """Return a dictionary column; NULL where a place is past the end or its text is damaged."""
    if top_text > len(texts) or None in texts:
        import pyarrow.compute as pc  # only here: to import it takes a twentieth of a second

        inside = pc.and_(pc.greater_equal(places, 0), pc.less(places, len(texts)))
        sound = pc.if_else(inside, places, None)
        real = [None if text is None else at for at, text in enumerate(texts)]
        places = pa.array(real, pa.int32()).take(sound)
    dictionary = pa.array(["" if text is None else text for text in texts], pa.string())
    return pa.DictionaryArray.from_arrays(places, dictionary)


def _make_added(session: Session, schema: Schema, batch: Batch) -> list[pa.Array]:
    """Return the columns ts, host, pid and rank."""
    at = [field.name for field in schema.fields].index("t_ns")
    times = batch.buffers[2 * at]
    assert times is not None
    walls = pa.py_buffer(_core.wall_us(times, batch.rows, session.wall_offset_ns))
    stamps = pa.Array.from_buffers(pa.timestamp("us", "UTC"), batch.rows, [None, walls])
    zeros = pa.py_buffer(bytes(4 * batch.rows))
    places = pa.Array.from_buffers(pa.int32(), batch.rows, [None, zeros])
    host = pa.DictionaryArray.from_arrays(places, pa.array([session.host]))
    of_machine = schema.scope == "host"
    whose = (None, None) if of_machine else (session.pid, session.rank)
    return [stamps, host, *(_repeat(number, batch.rows) for number in whose)]


def _repeat(number: int | None, rows: int) -> pa.Array:
    if number is None:
        return pa.nulls(rows, pa.int64())
    return pa.repeat(pa.scalar(number, pa.int64()), rows)


def open_tables(
    session: Session, wants: Callable[[str], bool] | None = None
) -> dict[str, SessionTable]:
    """Return every table of a session by name, from its rings or, once they are gone, its seal;
    with `wants`, only those whose names it is true of."""
    return _retry(lambda: _open_tables(session, wants))


def open_table(session: Session, name: str) -> SessionTable | SharedTable | None:
    """Return one table of a session, here or in a shared place; None if it has none."""
    if isinstance(session, SharedSession):
        return SharedTable(session, name)
    return open_tables(session).get(name)


def read_columns(session: Session, name: str, wanted: pa.Schema) -> pa.Table:
    """Return these columns of all rows that are kept of a table, archived or not; texts are texts,
    not numbers for them."""
    found = open_table(session, name)
    if found is None:
        return wanted.empty_table()
    parts = [archive.read_segment(part, wanted) for part in found.list_sound()]
    live = found.read_live()
    live = live.select([name for name in wanted.names if name in live.schema.names])
    plain = [
        pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type)
        for f in live.schema
    ]
    every = [wanted.empty_table(), *parts, live.cast(pa.schema(plain))]
    return pa.concat_tables(every, promote_options="default")


def _retry(open_all: Callable[[], dict[str, SessionTable]]) -> dict[str, SessionTable]:
    # The collector removes the rings of an ended session once all rows are archived.
    for _ in range(3):
        try:
            return open_all()
        except FileNotFoundError:
            continue
    return open_all()


def _open_tables(session: Session, wants: Callable[[str], bool] | None) -> dict[str, SessionTable]:
    found: dict[str, SessionTable] = {}
    sealed = session.read_sealed()
    for path in session.find_rings():
        if wants is not None and not wants(os.path.basename(path).removesuffix(SUFFIX)):
            continue
        try:
            ring = Ring(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Damaged(f"{path}: {error.strerror}") from None
        found[ring.schema.table] = SessionTable(session, ring.schema, ring)
    if sealed is not None:
        for schema in read_sealed_schemas(session, sealed, wants):
            if schema.table not in found:
                found[schema.table] = SessionTable(session, schema, None)
    return dict(sorted(found.items()))


def read_sealed_schemas(
    session: Session, sealed: Sealed, wants: Callable[[str], bool] | None = None
) -> list[Schema]:
    """Return the schemas of a sealed session's tables; with `wants`, as in open_tables."""
    try:
        return [
            load_schema(table.schema.encode())
            for name, table in sealed.tables.items()
            if wants is None or wants(name)
        ]
    except ValueError:
        raise Damaged(f"{session.path('sealed.json')} is damaged") from None


_COUNTERS = ("head", "dropped", "misfit", "text_lost")


def count_losses(table: SessionTable) -> dict[str, int]:
    """Return how many rows were written, are kept, and were lost how; the parts add up."""
    if table.ring is None:
        ring, live, corrupt, pending = _read_sealed_counters(table)
    else:
        ring = {key: table.ring.count(key) for key in _COUNTERS}
        batch = table.ring.read(table.archived_to, ring["head"])
        live, corrupt, pending = batch.rows, batch.corrupt, batch.pending
    sound = table.list_sound()
    corrupt += sum(part.corrupt for part in table.segments)
    corrupt += sum(part.last - part.first for part in table.segments if part not in sound)
    kept = live + archive.count_rows(sound)
    expired = archive.read_expired(table.session).get(table.schema.table, 0)
    missing = max(0, ring["head"] - kept - expired)
    corrupt = min(missing, corrupt)
    dropped = min(missing - corrupt, ring["dropped"])
    unfinished = min(missing - corrupt - dropped, pending)
    return {
        "written": ring["head"],
        "kept": kept,
        "dropped": dropped,
        "unfinished": unfinished,
        "overwritten": missing - corrupt - dropped - unfinished,
        "corrupt": corrupt,
        "expired": expired,
        "misfit": ring["misfit"],
        "text_lost": ring["text_lost"],
        "unshipped": _count_unshipped(table),
    }


def _count_unshipped(table: SessionTable) -> int:
    shipped = read_shipped(table.session)
    known = None if shipped is None else shipped.tables.get(table.schema.table)
    return 0 if known is None else known.unshipped


def _read_sealed_counters(table: SessionTable) -> tuple[dict[str, int], int, int, int]:
    sealed = table.session.read_sealed()
    entry = None if sealed is None else sealed.tables.get(table.schema.table)
    if entry is None:
        return dict.fromkeys(_COUNTERS, 0), 0, 0, 0
    return {key: getattr(entry, key) for key in _COUNTERS}, 0, 0, entry.unfinished
