"""A ring with its writer in memory, and values for every kind of column; for tests."""

from __future__ import annotations

import os
import struct

from hypothesis import strategies as st

from sonde import _core

INTEGERS = {
    "b": (-(2**7), 2**7 - 1), "h": (-(2**15), 2**15 - 1), "i": (-(2**31), 2**31 - 1),
    "q": (-(2**63), 2**63 - 1), "B": (0, 2**8 - 1), "H": (0, 2**16 - 1), "I": (0, 2**32 - 1),
    "Q": (0, 2**64 - 1),
}  # fmt: skip
KINDS = (*INTEGERS, "d", "?", "t")
HEAD_AT, HEADER_BYTES, SLOT_HEAD_BYTES = 128, 4096, 16
Row = list[object]


def make_map(size: int) -> tuple[_core.Map, int]:
    """A map of `size` zero bytes, and the file behind it."""
    fd = os.memfd_create("ring")
    os.truncate(fd, size)
    return _core.Map(fd, True), fd


class Memory:
    """A ring with its text table and writer, and the file behind the ring."""

    def __init__(
        self, kinds: str, optional: str, *, capacity: int = 8, texts: int = 4096,
        text_bytes: int = 2**20, strict: bool = False, timed: bool = False,
        spare: int = 0,
    ) -> None:  # fmt: skip
        self.kinds, self.optional, self.capacity = kinds, optional, capacity
        self.row_bytes = _core.layout_bytes(kinds, optional)
        size = _core.ring_bytes(capacity, self.row_bytes, 2)
        self.map, self.fd = make_map(size + spare * (self.row_bytes + SLOT_HEAD_BYTES))
        _core.ring_init(self.map, capacity, self.row_bytes, b"{}")
        if spare:
            _core.ring_add_spare(self.map, spare)
        self.text_map, text_fd = make_map(_core.intern_bytes(texts, text_bytes))
        os.close(text_fd)
        _core.intern_init(self.text_map, texts, text_bytes)
        self.emit = _core.Writer(kinds, optional, timed, strict)
        self.emit.attach(self.map, _core.Text(self.text_map))

    def close(self) -> None:
        self.emit.detach()
        os.close(self.fd)

    def count(self, name: str) -> int:
        return int(_core.ring_info(self.map)[name])

    def read(self, first: int = 0, last: int = 2**63) -> tuple[list[int], list[Row], list[int]]:
        """Tickets, rows, and how many were lost, pending and corrupt."""
        found = _core.ring_read(self.map, self.kinds, self.optional, first, last, True)[:5]
        rows, buffers, *missing = found
        texts, _lost = _core.intern_read(self.text_map)
        tickets = list(struct.unpack_from(f"<{rows}Q", bytes(buffers.pop() or b"")))
        columns = [
            self._decode(kind, rows, buffers[2 * at], buffers[2 * at + 1], texts)
            for at, kind in enumerate(self.kinds)
        ]
        return tickets, [list(row) for row in zip(*columns, strict=True)], missing

    def _decode(
        self, kind: str, rows: int, data: bytearray, valid: bytearray | None, texts: list[bytes]
    ) -> Row:
        values: Row
        if kind == "?":
            values = [_bit(data, at) for at in range(rows)]
        else:
            letter = "I" if kind == "t" else kind
            values = list(struct.unpack_from(f"<{rows}{letter}", bytes(data)))
        if kind == "t":
            values = [texts[number - 1] if number else None for number in values]
        return [
            value if valid is None or _bit(valid, at) else None for at, value in enumerate(values)
        ]

    # What a writer that dies, or a disk that errs, leaves behind.

    def poke(self, at: int, value: int) -> None:
        os.pwrite(self.fd, value.to_bytes(8, "little"), at)

    def peek(self, at: int) -> int:
        return int.from_bytes(os.pread(self.fd, 8, at), "little")

    def slot_at(self, index: int) -> int:
        return HEADER_BYTES + index * (SLOT_HEAD_BYTES + self.row_bytes)


def _bit(bits: bytearray, at: int) -> bool:
    return bool(bits[at >> 3] >> (at & 7) & 1)


def as_stored(kind: str, value: object) -> object:
    """What comes back for a value; floats as their bits, so that nan and -0.0 count."""
    if value is None:
        return None
    if kind == "t":
        # Lone surrogates have no UTF-8 and are spelled out.
        return str(value).encode("utf-8", "backslashreplace")
    return struct.pack("<d", value) if kind == "d" else value


def as_read(kinds: str, row: Row) -> Row:
    return [
        struct.pack("<d", value) if kind == "d" and value is not None else value
        for kind, value in zip(kinds, row, strict=True)
    ]


# ---- values --------------------------------------------------------------------------------------


def values_of(kind: str) -> st.SearchStrategy[object]:
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        return st.integers(low, high) | st.sampled_from([low, high, 0, 1, low + 1, high - 1])
    if kind == "d":
        edges = [
            0.0,
            -0.0,
            float("nan"),
            float("inf"),
            float("-inf"),
            5e-324,
            1.7976931348623157e308,
        ]
        return st.floats() | st.sampled_from(edges) | st.integers(-(2**53), 2**53)
    if kind == "?":
        return st.booleans()
    odd = [
        "",
        "\0",
        "a\0b",
        "\U0001f600",
        "\ud800",
        "a\udfffb",
        "x" * 10_000,
        "\\ud800",
        "ä" * 5000,
    ]
    return st.text(st.characters(), max_size=20) | st.sampled_from(odd)


def misfits_of(kind: str) -> list[object]:
    """Values that no column of this kind takes."""
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        return [low - 1, high + 1, 10**30, -(10**30), 1.5, "1", b"1", [], object()]
    if kind == "d":
        return ["1.0", 10**400, -(10**400), b"1", [], object()]
    return [1, b"text", 1.5, [], object(), True] if kind == "t" else ["no", 1, 0, 1.5, [], object()]


@st.composite
def schemas(draw: st.DrawFn) -> tuple[str, str]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=64))
    optional = [draw(st.booleans()) if at < 32 else False for at in range(len(kinds))]
    return "".join(kinds), "".join("01"[flag] for flag in optional)


def rows_of(kinds: str, optional: str) -> st.SearchStrategy[tuple[object, ...]]:
    columns = [
        values_of(kind) | st.none() if flag == "1" else values_of(kind)
        for kind, flag in zip(kinds, optional, strict=True)
    ]
    return st.tuples(*columns)
