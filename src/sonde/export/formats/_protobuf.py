"""Protobuf's wire format: the fields of messages as bytes."""

from __future__ import annotations

import struct
from functools import lru_cache
from math import inf

VARINT, FIXED64, BYTES = 0, 1, 2  # wire types

# Tables, because a million events take ten million numbers: the numbers of one byte, and pairs of
# bytes with more bytes to come.
_ONE = [bytes((low,)) for low in range(0x80)]
_PAIR = [bytes((low & 0x7F | 0x80, low >> 7 | 0x80)) for low in range(0x4000)]


def varint(value: int) -> bytes:
    """Return a number in groups of seven bits, lowest first; a negative one as its 64 bits."""
    if 0 <= value < 0x80:
        return _ONE[value]
    if value < 0:
        value += 2**64
    out = b""
    while value >= 0x4000:
        out += _PAIR[value & 0x3FFF]
        value >>= 14
    return out + (_ONE[value] if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7)))


@lru_cache(maxsize=256)
def make_key(field: int, wire_type: int) -> bytes:
    """Return what stands before the value of a field."""
    return varint(field << 3 | wire_type)


def number_field(field: int, value: int) -> bytes:
    """Return a field that is a whole number."""
    return make_key(field, VARINT) + varint(value)


def bytes_field(field: int, body: bytes) -> bytes:
    """Return a field that is bytes or a message."""
    return make_key(field, BYTES) + varint(len(body)) + body


def text_field(field: int, text: str) -> bytes:
    """Return a field that is text."""
    return bytes_field(field, text.encode("utf-8", "backslashreplace"))


def number_fields(*numbers: int) -> bytes:
    """Return a message whose fields 1, 2, … are these numbers."""
    return b"".join(number_field(at, number) for at, number in enumerate(numbers, 1))


def double(value: float) -> bytes:
    """Return the value of a double; a whole number too large for one is infinite."""
    try:
        return struct.pack("<d", value)
    except (OverflowError, struct.error):
        return struct.pack("<d", inf if value > 0 else -inf)
