"""Perfetto's protobuf: the timeline of chrome in smaller files, for large recordings."""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from typing import IO, Any

import pyarrow as pa

from sonde.analysis import timeline_sql
from sonde.analysis.profile import Profile
from sonde.analysis.timeline import Lane, Timeline, TimelineRow
from sonde.export.formats._protobuf import (
    bytes_field,
    double,
    make_key,
    number_field,
    text_field,
    varint,
)

SUFFIX = ".pftrace"
TEXT = False
IN_ORDER = True
TIMELINE = True
OPEN = "drop it on https://ui.perfetto.dev"

# Numbers of fields and values, from Perfetto's trace_packet.proto and the files it imports.
_PACKET = 1  # of Trace
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _TRACK, _CLOCKS = 8, 10, 11, 12, 13, 60, 6
_CLEARED, _NEEDED = 1, 2  # flags: interned names start over; interned names are needed
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # types of events
_REALTIME, _BOOTTIME = 1, 6  # clocks
_BY_RANK = 3  # sort the tracks of a process by rank
_SEQ = 1  # all packets come from one writer
_WRAP = f"SELECT {timeline_sql.COLUMNS} FROM layer"
_TRACKS, _COUNTS = 2**62, 2**61  # where the numbers of tracks and counters begin
_PIECE_BYTES = 2**20


def write(profile: Profile, file: IO[bytes]) -> None:
    """Write the whole timeline; see timeline.py."""
    timeline = Timeline(profile)
    if timeline.first_ns is None:
        raise profile.explain_nothing()
    writer = TraceWriter(file, timeline.first_ns)
    writer.begin()
    for lane in timeline.iter_lanes():
        writer.declare(lane)
    for row in timeline.iter_rows():
        if isinstance(row, Lane):
            writer.declare(row)
        else:
            writer.add(row)
    for batch in timeline.iter_batches(_WRAP):
        writer.add_batch(batch)
    writer.end()
    if not writer.rows:
        raise profile.explain_nothing()


class TraceWriter:
    """Writes rows as packets; names of events, categories and arguments are written once."""

    def __init__(self, file: IO[bytes], start_ns: int) -> None:
        self._file, self._start_ns = file, start_ns
        self.rows = 0
        self._pieces: list[bytes] = []
        self._size = 0
        self._lanes: dict[int, Lane] = {}
        self._tracks: set[int] = set()
        self._numbers: dict[tuple[object, ...], int] = {}  # of tracks without a lane, and of flows
        self._names: dict[tuple[int, str], int] = {}
        self._heads: dict[tuple[int, int, str, str], bytes] = {}

    def begin(self) -> None:
        """Write what comes before the rows."""
        # Times count from the start, on Perfetto's default clock: the numbers are small.
        clocks = b"".join(
            bytes_field(1, number_field(1, clock) + number_field(2, at))
            for clock, at in ((_BOOTTIME, 0), (_REALTIME, self._start_ns))
        )
        self._put(bytes_field(_CLOCKS, clocks + number_field(2, _BOOTTIME)))
        self._put(number_field(_FLAGS, _CLEARED))

    def declare(self, lane: Lane) -> None:
        """Remember the name of a process or lane."""
        self._lanes[_join(lane.pid, lane.tid)] = lane

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""
        columns = (column.to_pylist() for column in batch.columns)
        for row in map(TimelineRow._make, zip(*columns, strict=True)):
            self.add(row)

    def add(self, row: TimelineRow) -> None:
        """Write one row."""
        self.rows += 1
        if row.ph == "C":
            return self._count(row)
        at_ns = row.start_ns - self._start_ns
        track = self._find_track(row)
        more = b"" if row.args is None else self._annotate(row.args)
        if row.ph in "Xb":
            self._put_event(at_ns, self._head(_BEGIN, track, row.name, row.cat) + more)
            self._put_event(at_ns + row.dur_ns, _end(track))
            return None
        if row.ph in "stf":
            # On the instant itself, which lies in the slice that the flow comes from or leads to.
            more += struct.pack("<Q", self._find_number("flow", row.id))
            more = make_key(48 if row.ph == "f" else 47, 1) + more
        self._put_event(at_ns, self._head(_INSTANT, track, row.name, row.cat) + more)
        return None

    def end(self) -> None:
        """Write what is left."""
        self._file.write(b"".join(self._pieces))
        self._pieces.clear()
        self._size = 0

    # ---- tracks ----------------------------------------------------------------------------------

    def _find_track(self, row: TimelineRow) -> int:
        if row.ph == "i" and row.scope == "g":
            return 0
        process = self._declare(row.pid, 0)
        if row.ph == "i" and row.scope == "p":
            return process
        lane = self._declare(row.pid, row.tid)
        if row.ph != "b":
            return lane
        known = len(self._numbers)
        track = _TRACKS + self._find_number("track", row.id)
        if len(self._numbers) > known:
            message = number_field(1, track) + number_field(5, lane) + text_field(2, row.name)
            self._put(bytes_field(_TRACK, message))
        return track

    def _declare(self, pid: int, tid: int) -> int:
        """Return the track of a process (tid 0) or lane; describe it before its first use."""
        number = _join(pid, tid)
        if number in self._tracks:
            return number
        self._tracks.add(number)
        lane = self._lanes.get(number)
        name, order = (lane.name, lane.order) if lane else ("", 0)
        message = number_field(1, number)
        if tid == 0:
            message += bytes_field(3, number_field(1, pid) + text_field(6, name)) + number_field(
                11, _BY_RANK
            )
        else:
            self._declare(pid, 0)
            message += number_field(5, _join(pid, 0)) + number_field(12, order)
            message += bytes_field(
                4, number_field(1, pid) + number_field(2, tid) + text_field(5, name)
            )
        self._put(bytes_field(_TRACK, message))
        return number

    def _find_number(self, *key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers) + 1)

    def _count(self, row: TimelineRow) -> None:
        """Write a counter; each of its series is a track."""
        for series, value in json.loads(row.args or "{}").items():
            key = ("counter", row.pid, row.name, row.id, series)
            known = len(self._numbers)
            track = _COUNTS + self._find_number(*key)
            if len(self._numbers) > known:
                name = row.name if series == "value" else f"{row.name} {series}"
                name = name if row.id is None else f"{name}[{row.id}]"
                process = self._declare(row.pid, 0)
                message = (
                    number_field(1, track)
                    + number_field(5, process)
                    + text_field(2, name)
                    + bytes_field(8, b"")
                )
                self._put(bytes_field(_TRACK, message))
            whole = isinstance(value, int) and -(2**63) <= value < 2**63
            body = number_field(30, value) if whole else make_key(44, 1) + double(value)
            at_ns = row.start_ns - self._start_ns
            self._put_event(at_ns, number_field(9, _COUNTER) + number_field(11, track) + body)

    # ---- events ----------------------------------------------------------------------------------

    def _head(self, kind: int, track: int, name: str, cat: str) -> bytes:
        key = (kind, track, name, cat)
        found = self._heads.get(key)
        if found is None:
            if len(self._heads) > 2**16:
                self._heads.clear()
            found = (
                number_field(9, kind)
                + number_field(11, track)
                + number_field(10, self._intern(2, name))
            )
            for one in cat.split(","):
                found += number_field(3, self._intern(1, one))
            self._heads[key] = found
        return found

    def _annotate(self, args: str) -> bytes:
        number = args[6:-1] if args.startswith('{"id":') else ""
        if number.isdecimal():  # most regions have no other argument
            head = number_field(1, self._intern(3, "id"))
            return bytes_field(4, head + make_key(4, 0) + varint(int(number)))
        message = b""
        for key, value in json.loads(args).items():
            body = number_field(1, self._intern(3, key)) + _value(value)
            message += bytes_field(4, body)
        return message

    def _intern(self, field: int, text: str) -> int:
        """Return the number of a text, which is written before its first use."""
        key = (field, text)
        number = self._names.get(key)
        if number is None:
            number = self._names[key] = len(self._names) + 1
            entry = bytes_field(field, number_field(1, number) + text_field(2, text))
            self._put(number_field(_FLAGS, _NEEDED) + bytes_field(_INTERNED, entry))
        return number

    def _put_event(self, at_ns: int, event: bytes) -> None:
        packet = _AT + varint(at_ns) + _NEEDS + varint(len(event)) + event + _SAME
        piece = _WHOLE + varint(len(packet)) + packet
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > _PIECE_BYTES:
            self.end()

    def _put(self, packet: bytes) -> None:
        piece = bytes_field(_PACKET, packet + _SAME)
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > _PIECE_BYTES:
            self.end()


def _value(value: Any) -> bytes:
    """Return the value of an argument."""
    if isinstance(value, bool):
        return number_field(2, int(value))
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return number_field(4, value)
    if isinstance(value, (int, float)):
        return make_key(5, 1) + double(value)
    return text_field(6, value if isinstance(value, str) else json.dumps(value))


@lru_cache(maxsize=4096)
def _end(track: int) -> bytes:
    return number_field(9, _END) + number_field(11, track)


def _join(pid: int, tid: int) -> int:
    return pid << 32 | tid


_SAME = number_field(_SEQUENCE, _SEQ)
_WHOLE, _AT = make_key(_PACKET, 2), make_key(_TIMESTAMP, 0)
_NEEDS = number_field(_FLAGS, _NEEDED) + make_key(_EVENT, 2)
