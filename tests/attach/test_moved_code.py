"""Parts of the interpreter's loop that the compiler has put elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sonde.attach.elf import Elf
from sonde.attach.moved_code import find_moved_part
from sonde.attach.native_names import EVAL, is_entry
from sonde.attach.symbols import Library
from support import native_tools

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="only these builds need it")


@pytest.fixture
def library(tmp_path: Path) -> Library:
    path = str(native_tools.make_moved_loop(tmp_path))
    return Library(path, Elf(path), 0)


def test_a_part_is_known_by_the_jumps_into_its_midst(library: Library) -> None:
    part = find_moved_part(library)
    assert part is not None and is_entry(part.name)
    assert library.elf.read(part.begin, 4) == b"\x90\x90\x90\xc3"  # three times nothing, and back
    loop = library.elf.find_symbols([EVAL])[EVAL]
    assert not loop.address <= part.begin < loop.address + loop.bytes


def test_what_is_entered_at_its_beginning_is_another_function(library: Library) -> None:
    part = find_moved_part(library)
    pieces = library.elf.list_pieces()
    assert part is not None and part.end in pieces[:-1]  # the other one begins there
    assert part.end - part.begin < 16


def test_a_library_without_the_loop_has_no_part(tmp_path: Path) -> None:
    path = str(native_tools.make_aligned_stack(tmp_path))
    assert find_moved_part(Library(path, Elf(path), 0)) is None
