"""Where the libraries of a process lie."""

from __future__ import annotations

from sonde.attach.elf import Elf, ElfSegment
from sonde.attach.procfs import Mapping
from sonde.attach.symbols import find_bias

# libffi.so.8.5.0 of Debian: before its own place, a page of its code is mapped once more.
SEGMENTS = [(4, 0, 0, 0x1E88), (5, 0x2000, 0x2000, 0xC9D1), (4, 0xF000, 0xF000, 0x1DB8), (6, 0x11C30, 0x11C30, 0x5AC)]  # fmt: skip
AGAIN = (0x7F00_0000_0000, 0x1000, True, 0xD000)
PLACE = 0x7F00_0000_2000
WHOLE = [
    (PLACE, 0x2000, False, 0), (PLACE + 0x2000, 0xD000, True, 0x2000), (PLACE + 0xF000, 0x2000, False, 0xF000),
    (PLACE + 0x11000, 0x1000, False, 0x11000), (PLACE + 0x12000, 0x1000, False, 0x12000),
]  # fmt: skip


def make_mappings(parts: list[tuple[int, int, bool, int]]) -> list[Mapping]:
    return [
        Mapping(start, start + size, is_executable, offset, (254, 0), 1, "/lib/libffi.so.8.5.0")
        for start, size, is_executable, offset in parts
    ]


def make_elf() -> Elf:
    elf = object.__new__(Elf)
    elf.segments = [ElfSegment(*one) for one in SEGMENTS]
    return elf


def test_a_page_that_a_library_maps_once_more_does_not_say_where_it_lies() -> None:
    assert find_bias(make_elf(), make_mappings([AGAIN, *WHOLE])) == PLACE
    assert find_bias(make_elf(), make_mappings([*WHOLE, AGAIN])) == PLACE


def test_if_only_its_code_is_mapped_that_says_where_it_lies() -> None:
    assert find_bias(make_elf(), make_mappings(WHOLE[1:2])) == PLACE


def test_what_is_no_part_of_the_file_says_nothing() -> None:
    assert find_bias(make_elf(), make_mappings([(PLACE, 0x1000, True, 0x90000)])) is None
