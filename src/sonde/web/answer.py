"""Answers to the page: values, the SQL that they come from, and columns of numbers as bytes."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

_EXACT = 2**53  # a script knows whole numbers up to here
JSON, BYTES = "application/json", "application/octet-stream"


@dataclass(frozen=True)
class PageAnswer:
    """What the page is told, and the statements that anyone can run to get the same numbers."""

    data: Mapping[str, Any]
    sql: Sequence[str] = ()
    columns: Mapping[str, pa.Array] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The media type of what `pack` returns."""
        return BYTES if self.columns else JSON

    def pack(self) -> bytes:
        """Return the answer as JSON; if it has columns, those follow the JSON, each at a multiple
        of eight bytes, as the machine has them."""
        sizes = {name: [str(one.type), len(one)] for name, one in self.columns.items()}
        head = {"data": self.data, "sql": list(self.sql), "columns": sizes}
        text = json.dumps(head, separators=(",", ":"), default=make_plain).encode()
        if not self.columns:
            return text
        text += b" " * (-(len(text) + 4) % 8)
        parts = [len(text).to_bytes(4, "little"), text]
        for column in self.columns.values():
            body = read_bytes(column)
            parts += [body, b"\0" * (-len(body) % 8)]
        return b"".join(parts)


def read_bytes(column: pa.Array) -> bytes:
    """Return the numbers of an array without nulls, as bytes."""
    width = column.type.bit_width // 8
    body = column.buffers()[1]
    begin = column.offset * width
    return b"" if body is None else body.to_pybytes()[begin : begin + len(column) * width]


def make_plain(value: object) -> object:
    """Return a value of SQL as JSON has it: what it has no word for becomes text."""
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def make_exact(value: object) -> object:
    """Return a value so that a script shows it as it is: large whole numbers become text, and so
    do numbers that are not finite."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -_EXACT < value < _EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): make_exact(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [make_exact(one) for one in value]
    return value
