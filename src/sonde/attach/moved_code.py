"""Parts of the interpreter's loop that the compiler has put elsewhere, without a name.

Of the function that runs Python code, 1 KB lies where its name says in Debian's 3.14 and 3.15 for
x86_64. The rest, 80 KB that the compiler takes to run seldom, lies far away, and a file without
symbols has no name for it. That it belongs to the function is seen by the jumps into its midst:
other functions are entered at their beginning."""

from __future__ import annotations

import os
import re
import struct
from bisect import bisect_right
from typing import NamedTuple

from sonde.attach.elf import NotElf
from sonde.attach.native_names import EVAL
from sonde.attach.symbols import Library

# Jumps to a far place of x86_64, with or without a condition. The last four bytes say how far.
_JUMP = re.compile(rb"(?=(\x0f[\x80-\x8f]|\xe9)(.{4}))", re.DOTALL)
_PROOFS = 3  # what looks like a jump may be part of another instruction


class MovedPart(NamedTuple):
    """A part of a function that lies elsewhere, by the addresses of its file."""

    begin: int
    end: int
    name: str


def find_moved_part(library: Library) -> MovedPart | None:
    """Return the part of the interpreter's loop that lies elsewhere; None if there is none."""
    if os.uname().machine != "x86_64":
        return None  # of the builds that we have seen, only these need it
    elf = library.elf
    try:
        loop = elf.find_symbols([EVAL]).get(EVAL)
        pieces = elf.list_pieces() if loop else []
    except (NotElf, struct.error):
        return None
    if loop is None or not pieces:
        return None
    begins: dict[int, set[int]] = {}
    for target in _list_jumps(elf.read(loop.address, loop.bytes), loop.address):
        at = bisect_right(pieces, target) - 1
        if 0 <= at < len(pieces) - 1 and pieces[at] not in (target, loop.address):
            begins.setdefault(at, set()).add(target)
    at = max(begins, key=lambda one: len(begins[one]), default=0)
    if len(begins.get(at, ())) < _PROOFS:
        return None
    return MovedPart(pieces[at], pieces[at + 1], f"{EVAL}.cold")  # as compilers name it


def _list_jumps(code: bytes, begin: int) -> set[int]:
    """Return where the jumps in a function's code lead, as far as that is outside of it."""
    found = set()
    for jump in _JUMP.finditer(code):
        (distance,) = struct.unpack("<i", jump[2])
        found.add(begin + jump.end(2) + distance)
    return {one for one in found if not begin <= one < begin + len(code)}
