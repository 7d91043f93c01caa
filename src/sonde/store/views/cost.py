"""The view sonde.cost: what each source that measures itself has cost the process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from sonde.session import Session
from sonde.session.schema import make_schema
from sonde.store.rows import arrow_schema, read_columns
from sonde.store.view import Row, view_of_rows
from sonde.tables import name_row
from sonde.tables.heap import HeapSampling
from sonde.tables.stack import Sampling


class _Meter(NamedTuple):
    """A table in which a source counts the time that it has used since it was switched on."""

    source: str
    row: type
    column: str
    runs_in: str


_METERS = (
    _Meter("stack", Sampling, "cpu_ns", "a thread of sonde's own"),
    _Meter("heap", HeapSampling, "own_ns", "the program's threads"),
)


_EVERY_NS = 10_000_000_000  # between two counts


def _list_costs(session: Session) -> Iterator[Row]:
    for meter in _METERS:
        counts = _read_counts(session, meter)
        if not counts:
            continue
        # A source may have been switched on long after the recording began.
        begin_ns = max(session.meta.monotonic_ns, counts[0][0] - _EVERY_NS)
        over_ns = counts[-1][0] - begin_ns
        used_ns = _add_up([(begin_ns, 0), *counts])
        yield {
            "t_ns": counts[-1][0], "source": meter.source, "used_ns": used_ns, "over_ns": over_ns,
            "used_pct": 100 * used_ns / over_ns if over_ns > 0 else None, "runs_in": meter.runs_in,
        }  # fmt: skip


def _read_counts(session: Session, meter: _Meter) -> list[tuple[int, int]]:
    """Return when a source counted, and what it had used by then."""
    name = name_row(meter.row)
    schema = arrow_schema(make_schema(meter.row, name, "process"))
    wanted = pa.schema([schema.field("t_ns"), schema.field(meter.column)])
    whole = read_columns(session, name, wanted)
    return sorted(zip(*(column.to_pylist() for column in whole.columns), strict=True))


def _add_up(counts: list[tuple[int, int]]) -> int:
    """Add up what was used; a count that is less than the one before it has begun anew."""
    return sum(
        later - earlier if later >= earlier else later
        for (_, earlier), (_, later) in pairwise(counts)
    )


COST = view_of_rows(
    "sonde.cost",
    "What each source that measures itself has cost so far; sonde.overhead is about torch's steps.",
    _list_costs,
    ("t_ns", "i64", "ns", "when it was last counted"),
    ("source", "text", "", "source whose cost this is"),
    ("used_ns", "i64", "ns", "time that the source has used"),
    ("over_ns", "i64", "ns", "time that passed meanwhile"),
    ("used_pct", "f64", "%", "used_ns as a share of over_ns; 100 is one whole CPU"),
    ("runs_in", "text", "", "whose time it is: a thread of sonde's own, or the program's threads"),
    from_tables=True,
)
VIEWS = (COST,)
