"""pprof: samples, wall, CPU and GIL time, with lines, threads and ranks as labels."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import IO, TypeVar

from sonde.analysis.profile import Profile, ProfileFrame, Stack
from sonde.export.formats._protobuf import bytes_field, number_field, number_fields, varint
from sonde.session.stack_table import WEIGHTS

SUFFIX = ".pb.gz"
TEXT = False
IN_ORDER = False  # whether it needs the order of time
OPEN = "go tool pprof -http=: {file}, or drop it on https://www.speedscope.app"

# Numbers of the fields in pprof's profile.proto.
_SAMPLE_TYPE, _SAMPLE, _MAPPING, _LOCATION, _FUNCTION, _STRING = 1, 2, 3, 4, 5, 6
_TIME, _DURATION, _PERIOD_TYPE, _PERIOD, _DEFAULT = 9, 10, 11, 12, 14


_Thing = TypeVar("_Thing")


class _Numbered(dict[_Thing, int]):
    """Numbers for things, given in the order in which they first come, from `first` on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def number(self, thing: _Thing) -> int:
        """Return the number of a thing; a new one if the thing is new."""
        return self.setdefault(thing, len(self) + self._first)


class _Tables:
    """What samples refer to. Text 0 is always empty, and no function has the number 0."""

    def __init__(self) -> None:
        self.texts: _Numbered[str] = _Numbered(0)
        self.functions: _Numbered[tuple[str, str, int]] = _Numbered(1)
        self.locations: _Numbered[tuple[int, int]] = _Numbered(1)
        self.texts.number("")

    def locate(self, frame: ProfileFrame) -> int:
        """Return the number of a line of a function."""
        function = self.functions.number((frame.func, frame.file, frame.first_line))
        return self.locations.number((function, frame.lineno))


def write(profile: Profile, file: IO[bytes]) -> None:
    """Write all weights; pprof shows the chosen one first."""
    tables = _Tables()
    message = b"".join(_encode(profile, tables))
    # All texts are known only now; fields may come in any order.
    message += b"".join(
        bytes_field(_STRING, text.encode(errors="replace")) for text in tables.texts
    )
    # Without time and name in the gzip header: equal profiles give equal files.
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        packed.write(message)


def _encode(profile: Profile, tables: _Tables) -> Iterator[bytes]:
    text = tables.texts.number
    start_ns, end_ns = profile.span_ns
    types = [("samples", "count"), *((weight, "nanoseconds") for weight in WEIGHTS)]
    for kind, unit in types:
        yield bytes_field(_SAMPLE_TYPE, number_fields(text(kind), text(unit)))
    for stack in profile.stacks:
        yield bytes_field(_SAMPLE, _encode_stack(stack, tables))
    # The one mapping says that names and lines are known; otherwise pprof looks for a binary.
    program = text(profile.label)
    yield bytes_field(_MAPPING, number_field(1, 1) + number_field(5, program) + b"".join(
        number_field(known, 1) for known in (7, 8, 9)))  # fmt: skip
    for (function, line), number in tables.locations.items():
        yield bytes_field(
            _LOCATION, number_fields(number, 1) + bytes_field(4, number_fields(function, line))
        )
    for (func, path, first_line), number in tables.functions.items():
        # Without a system name: pprof would take it for C++ and cut off what looks like a template.
        yield bytes_field(_FUNCTION, number_fields(number, text(func), 0, text(path), first_line))
    yield number_field(_TIME, start_ns) + number_field(_DURATION, end_ns - start_ns)
    yield bytes_field(_PERIOD_TYPE, number_fields(text("wall"), text("nanoseconds")))
    yield number_field(_PERIOD, profile.period_ns) + number_field(_DEFAULT, text(profile.weight))


def _encode_stack(stack: Stack, tables: _Tables) -> bytes:
    # The innermost frame comes first.
    path = b"".join(varint(tables.locate(frame)) for frame in reversed(stack.frames))
    values = b"".join(map(varint, (stack.samples[0], *stack.ns)))
    process = stack.thread.process
    labels: dict[str, str | int | None] = {
        "thread": stack.thread.name,
        "thread_id": stack.thread.id,
        "host": process.host,
        "pid": process.pid,
        "rank": process.rank,
    }
    encoded = (
        _encode_label(key, value, tables) for key, value in labels.items() if value is not None
    )
    return bytes_field(1, path) + bytes_field(2, values) + b"".join(encoded)


def _encode_label(key: str, value: str | int, tables: _Tables) -> bytes:
    name = number_field(1, tables.texts.number(key))
    if isinstance(value, str):
        return bytes_field(3, name + number_field(2, tables.texts.number(value)))
    # With a unit: pprof takes a bare 0, which may be a rank, for no label.
    return bytes_field(3, name + number_field(3, value) + number_field(4, tables.texts.number(key)))
