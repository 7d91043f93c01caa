"""The views of events: event.summary and event.open_span."""

from __future__ import annotations

from collections.abc import Sequence

from sonde import _core
from sonde.errors import Damaged, Newer
from sonde.session import Session, ring
from sonde.session import texts as intern
from sonde.session.files import EVENT_TOTALS
from sonde.session.schema import Schema
from sonde.store.view import Columns, View, make_view_schema

_NAME = (
    ("name", "text", "", "the name the program gave it"),
    ("domain", "text", "", "the Domain it belongs to"),
)
_SUMMARY = make_view_schema(
    "event.summary",
    "Totals of regions, counters and markers, by name: exact, even where rows were overwritten.",
    (
        ("kind", "text", "", "span, task, frame, event, counter or marker"),
        *_NAME,
        ("count", "i64", "", "regions ended, values set, or moments marked"),
        ("total_ns", "i64", "ns", "time in these regions, without pauses"),
        ("min_ns", "i64", "ns", "shortest region"),
        ("max_ns", "i64", "ns", "longest region"),
        ("min", "f64", "", "least value of a counter"),
        ("max", "f64", "", "largest value of a counter"),
        ("mean", "f64", "", "time-weighted mean of a counter's finite values"),
        ("last", "f64", "", "newest value of a counter"),
        ("since_t_ns", "i64", "ns", "start of the first event that is counted"),
        ("last_t_ns", "i64", "ns", "when the newest event began, was set or was marked"),
    ),
)
_OPEN = make_view_schema(
    "event.open_span",
    "Regions that have begun and not ended: now, or when the recording ended.",
    (
        ("t_ns", "i64", "ns", "start"),
        *_NAME,
        ("kind", "text", "", "span, task, frame or event"),
        ("id", "i64", "", "number of the region in this process"),
        ("parent", "i64", "", "id of the enclosing region in its thread or asyncio task"),
        ("thread", "i64", "", "kernel thread id of the thread that began it"),
        ("number", "i64", "", "of a frame: 1, 2, … for each name"),
    ),
)


class EventTotals:
    """The totals and open regions in a session's event file, with their texts."""

    def __init__(self, session: Session) -> None:
        self.sums: list[tuple[object, ...]] = []
        self.open: list[tuple[object, ...]] = []
        self.damaged = 0
        try:
            mapped = ring.map_file(session.path(EVENT_TOTALS))
        except FileNotFoundError:
            return  # no event so far
        try:
            sums, regions, self.damaged = _core.totals_read(mapped, *_find_end(session))
        except _core.Damaged:
            raise Damaged(f"{session.path(EVENT_TOTALS)} is truncated or damaged") from None
        except _core.Newer:
            raise Newer(session.path(EVENT_TOTALS)) from None
        texts = intern.read_texts(session.folder)

        def name(number: int) -> str | None:
            return texts[number - 1] if 0 < number <= len(texts) else None

        self.sums = [(kind, name(what), name(domain), *rest) for kind, domain, what, *rest in sums]
        self.open = [
            (t_ns, name(what), name(domain), kind, id, parent or None, thread, number or None)
            for id, parent, t_ns, what, domain, kind, thread, number in regions
        ]


def _find_end(session: Session) -> tuple[int, int]:
    """Return when counters stopped holding their values, and the paused time before that."""
    page = session.read_control()
    now_ns = _core.clock_ns() if session.is_alive() else page["state_t_ns"]
    paused_ns = page["paused_ns"]
    if not page["on"]:
        paused_ns += max(0, now_ns - page["paused_t_ns"])
    return now_ns, paused_ns


def _make_columns(schema: Schema, rows: Sequence[tuple[object, ...]]) -> Columns:
    names = [field.name for field in schema.fields]
    return dict(zip(names, zip(*rows, strict=True), strict=False))


SUMMARY = View(
    _SUMMARY,
    lambda session: _make_columns(_SUMMARY, EventTotals(session).sums),
    is_archived=True,
)
OPEN_SPAN = View(
    _OPEN, lambda session: _make_columns(_OPEN, EventTotals(session).open), is_archived=True
)
VIEWS = (SUMMARY, OPEN_SPAN)
