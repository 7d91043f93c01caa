"""ELF files: their machine, segments and symbols."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64", 21: "ppc64"}
_LOAD, _DYNSYM, _VERSYM, _FUNCTION, _OBJECT = 1, 11, 0x6FFFFFFF, 2, 1
_UNWIND_INDEX = 0x6474E550  # the kind of segment that lists where each piece of code begins
_INDEX_FORM = bytes.fromhex("011b033b")  # how every linker writes that list on our machines
_HIDDEN = 0x8000  # a version of a symbol for old programs only
_EXECUTABLE = 1


class NotElf(ValueError):
    """The file is not an ELF file, or a damaged one."""


@dataclass(frozen=True)
class ElfSegment:
    """A part of the file that is mapped when it is run."""

    flags: int
    offset: int
    address: int
    bytes: int

    @property
    def is_executable(self) -> bool:
        return bool(self.flags & _EXECUTABLE)


@dataclass(frozen=True)
class Symbol:
    """A function or variable that the file exports."""

    address: int
    is_plain: bool  # not an indirect function, which is resolved at its first call
    bytes: int


class Elf:
    """An ELF file, mapped; NotElf if the file is none."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            try:
                self._data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            except ValueError:
                raise NotElf(path) from None
        try:
            self._parse()
        except (struct.error, IndexError, OverflowError):
            raise NotElf(path) from None

    def _parse(self) -> None:
        data = self._data
        if data[:4] != b"\x7fELF" or data[5] != 1:
            raise NotElf("not little-endian ELF")
        self.bits = 64 if data[4] == 2 else 32
        self.machine = MACHINES.get(struct.unpack_from("<H", data, 18)[0], "another machine")
        self.segments: list[ElfSegment] = []
        self._sections: list[tuple[int, ...]] = []
        self._index: ElfSegment | None = None
        if self.bits == 32:
            return
        segments_at, sections_at = struct.unpack_from("<QQ", data, 32)
        size, count, section_size, sections = struct.unpack_from("<4H", data, 54)
        for i in range(count):
            kind, flags, offset, address, _, length = struct.unpack_from(
                "<IIQQQQ", data, segments_at + i * size
            )
            if kind == _LOAD:
                self.segments.append(ElfSegment(flags, offset, address, length))
            elif kind == _UNWIND_INDEX:
                self._index = ElfSegment(flags, offset, address, length)
        for i in range(sections if sections_at else 0):
            at = sections_at + i * section_size
            self._sections.append(struct.unpack_from("<IIQQQQIIQQ", data, at))

    def list_pieces(self) -> list[int]:
        """Return where each piece of code that has unwind tables begins, in order: each function,
        and each part of one that the compiler has put elsewhere. Empty if there is no such list."""
        index = self._index
        if index is None or self.read(index.address, 4) != _INDEX_FORM:
            return []
        (count,) = struct.unpack("<I", self.read(index.address + 8, 4))
        table = self.read(index.address + 12, 8 * count)
        return [index.address + begin for begin, _row in struct.iter_unpack("<ii", table)]

    def find_symbols(self, names: Iterable[str]) -> dict[str, Symbol]:
        """Return those of the names that this file defines, each in its newest version."""
        found: dict[str, Symbol] = {}
        try:
            for name, symbol, is_hidden in self._iter_symbols(set(names)):
                if name not in found or not is_hidden:
                    found[name] = symbol
        except (struct.error, IndexError, OverflowError):
            raise NotElf("a damaged table of symbols") from None
        return found

    def _iter_symbols(self, names: set[str]) -> Iterator[tuple[str, Symbol, bool]]:
        versions = next((s for s in self._sections if s[1] == _VERSYM), None)
        for section in self._sections:
            if section[1] != _DYNSYM:
                continue
            texts = self._sections[section[6]]
            wanted = self._find_texts(names, texts[4], texts[5])
            table = memoryview(self._data)[section[4] : section[4] + section[5] // 24 * 24]
            for i, (name, info, _, where, value, length) in enumerate(
                struct.iter_unpack("<IBBHQQ", table)
            ):
                if name in wanted and where != 0:
                    kind = info & 15
                    hidden = versions is not None and bool(
                        struct.unpack_from("<H", self._data, versions[4] + 2 * i)[0] & _HIDDEN
                    )
                    is_plain = kind in (_FUNCTION, _OBJECT)
                    yield wanted[name], Symbol(value, is_plain, length), hidden
            table.release()

    def _find_texts(self, names: set[str], start: int, size: int) -> dict[int, str]:
        """Return where each name may begin in the string table; names may share their ends."""
        wanted = {}
        for name in names:
            at, text = start, name.encode() + b"\0"
            while (at := self._data.find(text, at, start + size)) >= 0:
                wanted[at - start] = name
                at += 1
        return wanted

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of the file by their address in the program; empty if it has none there."""
        for segment in self.segments:
            at = address - segment.address
            if 0 <= at <= segment.bytes - size:
                return self._data[segment.offset + at : segment.offset + at + size]
        return b""

    def find_code(self, code: bytes) -> int | None:
        """Return the first address of these instructions."""
        for segment in self.segments:
            if segment.is_executable:
                at = self._data.find(code, segment.offset, segment.offset + segment.bytes)
                if at >= 0:
                    return segment.address + at - segment.offset
        return None

    def find_bias(self, offset: int, start: int) -> int | None:
        """Return how far the program lies from the file's addresses, given one of its mappings."""
        # The last that fits: a page of the file may hold the end of one segment and the beginning
        # of the next, which is then mapped from there on.
        for segment in sorted(self.segments, key=lambda one: -one.offset):
            page = segment.offset & ~0xFFF
            if page <= offset < segment.offset + segment.bytes:
                return start - (segment.address - segment.offset + offset)
        return None
