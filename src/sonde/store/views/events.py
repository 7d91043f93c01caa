"""The tables about events that are worked out when asked for: summary and open_span."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from sonde import _core
from sonde.errors import Damaged, Newer
from sonde.session import Session, ring
from sonde.session import texts as intern
from sonde.session.files import LIVE
from sonde.session.schema import Field, Schema
from sonde.store import archive

_TYPES = {"text": pa.string(), "i64": pa.int64(), "f64": pa.float64()}


class View:
    """A table that is worked out when it is asked for."""

    def __init__(self, schema: Schema, make: Callable[[Session], list[tuple[object, ...]]]) -> None:
        self.schema, self._make = schema, make
        self.columns = pa.schema([pa.field(f.name, _TYPES[f.kind]) for f in schema.fields])

    def read(self, sessions: Sequence[Session]) -> pa.Table:
        """What there is of some sessions, live or ended."""
        parts = [self._read_of(session) for session in sessions]
        return pa.concat_tables([self.columns.empty_table(), *parts])

    def _read_of(self, session: Session) -> pa.Table:
        stored = [
            part for part in archive.list_segments(session, self.schema.table) if part.is_sound()
        ]
        if session.read_sealed() is not None and stored:
            return pa.concat_tables([archive.read_segment(part, self.columns) for part in stored])
        return self.make_table(session)

    def make_table(self, session: Session) -> pa.Table:
        """The rows of a session that is not sealed."""
        whose = (session.host, session.pid, session.rank)
        rows = [(*row, *whose) for row in self._make(session)]
        columns = list(zip(*rows, strict=True)) or [()] * len(self.columns)
        arrays = [pa.array(one, f.type) for one, f in zip(columns, self.columns, strict=True)]
        return pa.table(arrays, schema=self.columns)


def _fields(*columns: tuple[str, str, str, str]) -> list[Field]:
    return [Field(name, kind, True, doc, unit) for name, kind, unit, doc in columns]


_WHAT = (
    ("name", "text", "", "what the program calls it"),
    ("domain", "text", "", "the Domain it belongs to"),
)
_WHOSE = (
    ("host", "text", "", "machine"), ("pid", "i64", "", "process"), ("rank", "i64", "", "rank"),
)  # fmt: skip
_SUMMARY = Schema(
    "event.summary",
    _fields(
        ("kind", "text", "", "span, task, frame, event, counter or marker"),
        *_WHAT,
        ("count", "i64", "", "regions ended, values set, or moments marked"),
        ("total_ns", "i64", "ns", "time in these regions, without pauses"),
        ("min_ns", "i64", "ns", "the shortest of them"),
        ("max_ns", "i64", "ns", "the longest of them"),
        ("min", "f64", "", "least value of a counter"),
        ("max", "f64", "", "largest value of a counter"),
        ("mean", "f64", "", "mean of a counter over the time it was recorded and finite"),
        ("last", "f64", "", "value of a counter now"),
        ("since_t_ns", "i64", "ns", "all this counts from here on: from the begin of the first "
         "that is in it"),
        ("last_t_ns", "i64", "ns", "when the newest of them began, was set or marked"),
        *_WHOSE,
    ),
    "What regions, counters and markers come to, by name: exact, whatever the rings have lost.",
)  # fmt: skip
_OPEN = Schema(
    "event.open_span",
    _fields(
        ("t_ns", "i64", "ns", "start"),
        *_WHAT,
        ("kind", "text", "", "span, task, frame or event"),
        ("id", "i64", "", "its number in this process"),
        ("parent", "i64", "", "the region around it, of its thread or asyncio task"),
        ("thread", "i64", "", "thread that began it, as the kernel counts"),
        ("number", "i64", "", "of a frame: 1, 2, … for each name"),
        *_WHOSE,
    ),
    "Regions that have begun and not ended: now, or when the recording did.",
)


class Live:
    """What event.live says, with its texts."""

    def __init__(self, session: Session) -> None:
        self.sums: list[tuple[object, ...]] = []
        self.open: list[tuple[object, ...]] = []
        self.damaged = 0
        try:
            mapped = ring.map_file(session.path(LIVE))
        except FileNotFoundError:
            return  # no event so far
        try:
            sums, regions, self.damaged = _core.live_read(mapped, *_find_end(session))
        except _core.Damaged:
            raise Damaged(f"{session.path(LIVE)} is cut or damaged") from None
        except _core.Newer:
            raise Newer(session.path(LIVE)) from None
        texts = intern.read_texts(session.folder)

        def name(number: int) -> str | None:
            return texts[number - 1] if 0 < number <= len(texts) else None

        self.sums = [(kind, name(what), name(domain), *rest) for kind, domain, what, *rest in sums]
        self.open = [
            (t_ns, name(what), name(domain), kind, id, parent or None, thread, number or None)
            for id, parent, t_ns, what, domain, kind, thread, number in regions
        ]


def _find_end(session: Session) -> tuple[int, int]:
    """Up to when counters kept their values, and the pauses before that."""
    page = session.read_control()
    now_ns = _core.clock_ns() if session.is_alive() else page["state_t_ns"]
    paused_ns = page["paused_ns"]
    if not page["on"]:
        paused_ns += max(0, now_ns - page["paused_t_ns"])
    return now_ns, paused_ns


SUMMARY = View(_SUMMARY, lambda session: Live(session).sums)
OPEN_SPAN = View(_OPEN, lambda session: Live(session).open)
VIEWS = (SUMMARY, OPEN_SPAN)
