"""From a place in a code object to its line, for the line tables of every supported Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_NO_LINE, _LONG, _NO_COLUMNS = 15, 14, 13
_SHORT_FORMS = 10  # kinds below it stay on the line and have one more byte; 10 to 12 have two


class Code(NamedTuple):
    """A code object: its names, and which line each of its instructions belongs to."""

    name: str
    file: str
    first_line: int
    table: bytes


def find_line(code: Code, unit: int) -> int:
    """Return the line of an instruction, by its number; the first line if it has none."""
    line, end, data = code.first_line, 0, iter(code.table)
    for head in data:
        kind, end = head >> 3 & 15, end + (head & 7) + 1
        if kind == _LONG:
            line += _read_signed(data)
            for _ in range(3):
                _read_number(data)
        elif kind == _NO_COLUMNS:
            line += _read_signed(data)
        elif kind != _NO_LINE:
            line += max(0, kind - _SHORT_FORMS)
            for _ in range(1 if kind < _SHORT_FORMS else 2):
                next(data, 0)
        if unit < end:
            return code.first_line if kind == _NO_LINE else line
    return code.first_line


def find_line_310(code: Code, unit: int) -> int:
    """The same for 3.10: pairs of how many bytes, and how many lines further."""
    line, end = code.first_line, 0
    for step, delta in zip(code.table[::2], code.table[1::2], strict=False):
        signed = delta - 256 if delta > 127 else delta
        end += step
        if signed != -128:  # which marks code without a line
            line += signed
        if 2 * unit < end:
            return line
    return code.first_line


def _read_number(data: Iterator[int]) -> int:
    number = shift = 0
    for byte in data:
        number |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return number


def _read_signed(data: Iterator[int]) -> int:
    number = _read_number(data)
    return -(number >> 1) if number & 1 else number >> 1
