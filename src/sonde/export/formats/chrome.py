"""Chrome trace events: a timeline of everything for Perfetto and chrome://tracing."""

from __future__ import annotations

import hashlib
import json
from copy import copy
from functools import lru_cache
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from sonde.analysis.profile import Profile
from sonde.analysis.timeline import Lane, Timeline, TimelineRow

SUFFIX = ".trace.json"
TEXT = True
IN_ORDER = True  # whether it needs the order of time
TIMELINE = True  # whether it shows more than samples
OPEN = "drop it on https://ui.perfetto.dev, or load it in chrome://tracing"
END = "\n]}\n"


def write(profile: Profile, file: IO[str]) -> None:
    """Write slices, instants, counters and flows of the whole timeline; see timeline.py."""
    timeline = Timeline(profile)
    if timeline.first_ns is None:
        raise profile.explain_nothing()
    writer = TraceWriter(file, timeline.first_ns)
    writer.begin()
    fill(writer, timeline)
    writer.end()
    if not writer.rows:
        raise profile.explain_nothing()


def fill(writer: TraceWriter, timeline: Timeline) -> None:
    """Write a whole timeline."""
    for lane in timeline.iter_lanes():
        writer.declare(lane)
    for row in timeline.iter_rows():
        if isinstance(row, Lane):
            writer.declare(row)
        else:
            writer.add(row)
    for batch in timeline.iter_batches(writer.wrap):
        writer.add_batch(batch)


class TraceWriter:
    """Writes rows as lines of JSON; a process or lane is named before its first row."""

    def __init__(self, file: IO[str], start_ns: int) -> None:
        self.file, self._start_ns = file, start_ns
        self.rows = 0
        self._begun = False
        self._named: set[int] = set()
        self._lanes: dict[int, Lane] = {}

    @property
    def wrap(self) -> str:
        """SQL that turns the rows of `layer` into lines."""
        return _WRAP.replace("{start_ns}", str(self._start_ns))

    def copy(self, file: IO[str]) -> TraceWriter:
        """Return a copy that goes on from here while this one stays as it is."""
        new = copy(self)
        new.file, new._named, new._lanes = file, set(self._named), dict(self._lanes)
        return new

    def begin(self) -> None:
        """Write what comes before the rows."""
        # Times count from the start: a double cannot hold nanoseconds since 1970.
        about = {"recorder": "sonde", "start_wall_ns": str(self._start_ns)}
        head = {"displayTimeUnit": "ms", "otherData": about}
        self.file.write(json.dumps(head, separators=(",", ":"))[:-1] + ',"traceEvents":[')

    def end(self) -> None:
        """Write what comes after the rows."""
        self.file.write(END)

    def declare(self, lane: Lane) -> None:
        """Remember the name of a process or lane."""
        self._lanes[_join(lane.pid, lane.tid)] = lane

    def add(self, row: TimelineRow) -> None:
        """Write one row."""
        self._name(_join(row.pid, row.tid))
        self._write(_format(row, self._start_ns))
        self.rows += 1

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Write rows that SQL made with `wrap`."""
        for lane in pc.unique(batch["lane"]).to_pylist():
            self._name(lane)
        self._write(_join_texts(batch["text"]))
        self.rows += batch.num_rows

    def _name(self, number: int) -> None:
        if number in self._named:
            return
        self._named.add(number)
        pid, tid = number >> _TID_BITS, number & (1 << _TID_BITS) - 1
        if tid:
            self._name(_join(pid, 0))
        lane, kind = self._lanes.get(number), "thread" if tid else "process"
        if lane is not None:
            for key, value in (("name", lane.name), ("sort_index", lane.order)):
                about = {"ph": "M", "pid": pid, "tid": tid, "name": f"{kind}_{key}",
                         "args": {key: value}}  # fmt: skip
                self._write(",\n" + json.dumps(about, separators=(",", ":")))

    def _write(self, text: str) -> None:
        # Every line begins with a comma; the very first must not.
        self.file.write(text if self._begun else text[1:])
        self._begun = True


_TID_BITS = 32
# Microseconds, exact to the nanosecond; below zero is what began before the first moment shown.
_MICROS = (
    "CASE WHEN {0} < 0 THEN '-' END, abs({0}) // 1000, '.', "
    "lpad((abs({0}) % 1000)::VARCHAR, 3, '0')"
)
_WRAP = f"""\
SELECT pid << {_TID_BITS} | tid AS lane, concat(
    ',\n{{"ph":"', ph, '","pid":', pid, ',"tid":', tid, ',"ts":', {_MICROS.format("at_ns")},
    CASE ph WHEN 'X' THEN concat(',"dur":', {_MICROS.format("dur_ns")})
        WHEN 'i' THEN concat(',"s":"', scope, '"') WHEN 'f' THEN ',"bp":"e"' END,
    CASE WHEN id IS NULL THEN NULL WHEN ph IN ('s', 't', 'f')
        THEN concat(',"id":', ('0x' || left(md5(id::VARCHAR), 13))::UBIGINT)
        ELSE concat(',"id":', to_json(id)) END,
    ',"name":', to_json(name), ',"cat":', to_json(cat),
    CASE WHEN args IS NOT NULL THEN concat(',"args":', args) END, '}}',
    CASE ph WHEN 'b' THEN concat(',\n{{"ph":"e","pid":', pid, ',"tid":', tid, ',"ts":',
        {_MICROS.format("(at_ns + dur_ns)")}, ',"id":', to_json(id), ',"name":', to_json(name),
        ',"cat":', to_json(cat), '}}') END) AS text
FROM (SELECT *, start_ns - {{start_ns}} AS at_ns FROM layer)"""


def _join(pid: int, tid: int) -> int:
    return pid << _TID_BITS | tid


def _join_texts(column: pa.Array) -> str:
    """Return the texts of a column joined, as they lie in memory."""
    wide = pa.types.is_large_string(column.type)
    offsets = memoryview(column.buffers()[1]).cast("q" if wide else "i")
    first, last = offsets[column.offset], offsets[column.offset + len(column)]
    return str(memoryview(column.buffers()[2])[first:last], "utf-8")


def _format(row: TimelineRow, start_ns: int) -> str:
    """Return the line of one row, the same as SQL makes it."""
    times = f'"ts":{_micros(row.start_ns - start_ns)}'
    if row.ph == "X":
        times += f',"dur":{_micros(row.dur_ns)}'
    elif row.ph == "i":
        times += f',"s":"{row.scope}"'
    elif row.ph == "f":
        times += ',"bp":"e"'
    number = "" if row.id is None else f',"id":{_quote_id(row.ph, row.id)}'
    args = "" if row.args is None else f',"args":{row.args}'
    rest = f'{number},"name":{_quote(row.name)},"cat":{_quote(row.cat)}{args}'
    line = f',\n{{"ph":"{row.ph}","pid":{row.pid},"tid":{row.tid},{times}{rest}}}'
    if row.ph != "b":
        return line
    end = row._replace(ph="e", start_ns=row.start_ns + row.dur_ns, args=None)
    return line + _format(end, start_ns)


def _quote_id(ph: str, text: str) -> str:
    """Return an id; that of a flow is a number, which JavaScript can hold: Perfetto wants one."""
    if ph not in "stf":
        return _quote(text)
    return str(int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:13], 16))


@lru_cache(maxsize=65536)
def _quote(text: str) -> str:
    return json.dumps(text)


def _micros(ns: int) -> str:
    sign, ns = "-" if ns < 0 else "", abs(ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"
