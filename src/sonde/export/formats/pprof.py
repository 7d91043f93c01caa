"""pprof: samples, wall, CPU and GIL time, with lines, threads and ranks as labels."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import IO, TypeVar

from sonde.analysis.profile import WEIGHTS, Frame, Profile, Stack

SUFFIX = ".pb.gz"
TEXT = False
IN_ORDER = False  # does it need the order of time?
OPEN = "go tool pprof -http=: {file}, or drop it on https://www.speedscope.app"

# Numbers of the fields in pprof's profile.proto.
_SAMPLE_TYPE, _SAMPLE, _MAPPING, _LOCATION, _FUNCTION, _STRING = 1, 2, 3, 4, 5, 6
_TIME, _DURATION, _PERIOD_TYPE, _PERIOD, _DEFAULT = 9, 10, 11, 12, 14


_Thing = TypeVar("_Thing")


class _Table(dict[_Thing, int]):
    """Things by the number they first came with, counted from `first`."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def number(self, thing: _Thing) -> int:
        """Its number; a new one if it is new."""
        return self.setdefault(thing, len(self) + self._first)


class _Tables:
    """What samples refer to: the empty text is always text 0, and 0 is no function."""

    def __init__(self) -> None:
        self.texts: _Table[str] = _Table(0)
        self.functions: _Table[tuple[str, str, int]] = _Table(1)
        self.locations: _Table[tuple[int, int]] = _Table(1)
        self.texts.number("")

    def locate(self, frame: Frame) -> int:
        """The number of a line of a function."""
        function = self.functions.number((frame.func, frame.file, frame.first_line))
        return self.locations.number((function, frame.lineno))


def write(profile: Profile, file: IO[bytes]) -> None:
    """All weights are in it; the chosen one is what pprof shows first."""
    tables = _Tables()
    message = b"".join(_encode(profile, tables))
    # The texts are all known only now; fields may come in any order.
    message += b"".join(_field(_STRING, text.encode(errors="replace")) for text in tables.texts)
    # No time and no name in the envelope: equal profiles are equal files.
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        packed.write(message)


def _encode(profile: Profile, tables: _Tables) -> Iterator[bytes]:
    text = tables.texts.number
    start_ns, end_ns = profile.span_ns
    types = [("samples", "count"), *((weight, "nanoseconds") for weight in WEIGHTS)]
    for kind, unit in types:
        yield _field(_SAMPLE_TYPE, _pack(text(kind), text(unit)))
    for stack in profile.stacks:
        yield _field(_SAMPLE, _encode_stack(stack, tables))
    # One mapping that says names and lines are known, or pprof looks for a binary to ask.
    program = text(profile.label)
    yield _field(_MAPPING, _number(1, 1) + _number(5, program) + b"".join(
        _number(known, 1) for known in (7, 8, 9)))  # fmt: skip
    for (function, line), number in tables.locations.items():
        yield _field(_LOCATION, _pack(number, 1) + _field(4, _pack(function, line)))
    for (func, path, first_line), number in tables.functions.items():
        # Without a system name: pprof would take it for C++ and cut what looks like a template.
        yield _field(_FUNCTION, _pack(number, text(func), 0, text(path), first_line))
    yield _number(_TIME, start_ns) + _number(_DURATION, end_ns - start_ns)
    yield _field(_PERIOD_TYPE, _pack(text("wall"), text("nanoseconds")))
    yield _number(_PERIOD, profile.period_ns) + _number(_DEFAULT, text(profile.weight))


def _encode_stack(stack: Stack, tables: _Tables) -> bytes:
    # The innermost frame comes first.
    path = b"".join(_varint(tables.locate(frame)) for frame in reversed(stack.frames))
    values = b"".join(map(_varint, (stack.samples[0], *stack.ns)))
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
    return _field(1, path) + _field(2, values) + b"".join(encoded)


def _encode_label(key: str, value: str | int, tables: _Tables) -> bytes:
    name = _number(1, tables.texts.number(key))
    if isinstance(value, str):
        return _field(3, name + _number(2, tables.texts.number(value)))
    # With a unit: pprof takes a bare 0, which a rank may be, for no label at all.
    return _field(3, name + _number(3, value) + _number(4, tables.texts.number(key)))


# ---- protobuf's wire format --------------------------------------------------------------------


def _varint(number: int) -> bytes:
    """Seven bits a byte, lowest first."""
    number &= 2**64 - 1  # a negative number is written as its 64 bits
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _pack(*numbers: int) -> bytes:
    """A message whose fields 1, 2, … are these numbers."""
    return b"".join(_number(at, number) for at, number in enumerate(numbers, 1))
