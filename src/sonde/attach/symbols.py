"""Where the functions are in a running process that a visitor calls."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from sonde import _core
from sonde.attach.elf import Elf, NotElf
from sonde.attach.procfs import Mapping, ProcessFiles

# The code of rt_sigreturn, which a signal handler returns to.
RESTORERS = {
    "x86_64": bytes.fromhex("48c7c00f000000 0f05"),
    "aarch64": bytes.fromhex("681180d2 010000d4"),
}
_PROOF_BYTES = 16
# Libraries that hold locks of the C library while their code runs.
_LOCKING = ("ld-", "ld64", "libc.", "libc-", "libpthread", "libdl", "librt", "libgcc_s",
            "libunwind", "libjemalloc", "libtcmalloc", "libmimalloc", "libasan", "libtsan",
            "libmemray")  # fmt: skip


@dataclass
class Library:
    """A library or program that the process has mapped."""

    path: str
    elf: Elf
    bias: int
    text: list[tuple[int, int]] = field(default_factory=list)


class Replaced(Exception):
    """The file was replaced since the process mapped it."""


class Libraries:
    """The files whose code a process runs, opened on demand."""

    def __init__(self, process: ProcessFiles) -> None:
        self._process = process
        self._mappings: dict[str, list[Mapping]] = {}
        self.vdso: Mapping | None = None
        for mapping in process.list_mappings():
            if mapping.path.startswith("/"):
                self._mappings.setdefault(mapping.path, []).append(mapping)
            elif mapping.path == "[vdso]":
                self.vdso = mapping
        self._open: dict[str, Library | None] = {}

    def list_code(self) -> list[str]:
        """Return the files with executable mappings."""
        return [path for path, some in self._mappings.items() if any(m.is_executable for m in some)]

    def find(self, *starts: str) -> Iterator[Library]:
        """Yield the libraries whose file name begins with one of `starts`."""
        for path in self.list_code():
            if os.path.basename(path).startswith(starts):
                library = self.open(path)
                if library is not None:
                    yield library

    def open(self, path: str) -> Library | None:
        """Open one of them; None if it is not an ELF file, Replaced if it is another by now."""
        if path not in self._open:
            self._open[path] = self._load(path)
        return self._open[path]

    def _load(self, path: str) -> Library | None:
        some = self._mappings[path]
        seen = self._process.find_file(path)
        if path == self._process.read_link("exe"):
            seen = f"{self._process.folder}/exe"  # readable even when the file is deleted
        try:
            if os.stat(seen).st_ino != some[0].inode:
                raise Replaced(path)
            elf = Elf(seen)
        except FileNotFoundError:
            raise Replaced(path.removesuffix(" (deleted)")) from None
        except NotElf:
            return None
        bias = find_bias(elf, some)
        if bias is None:
            return None
        return Library(path, elf, bias, [(m.start, m.end) for m in some if m.is_executable])

    def list_other_text(self, python: str) -> list[tuple[int, int]]:
        """Return the code of libraries, except Python and those that hold locks of the C library.

        While a thread runs that code, it holds none of those locks."""
        found: list[tuple[int, int]] = []
        for path in self.list_code():
            if path != python and not os.path.basename(path).startswith(_LOCKING):
                found += self._list_text(path)
        return found

    def _list_text(self, path: str) -> list[tuple[int, int]]:
        try:
            library = self.open(path)
        except (Replaced, OSError):
            return []
        if library is None or library.elf.find_symbols(["malloc", "calloc"]):
            return []
        return library.text


def find_bias(elf: Elf, some: list[Mapping]) -> int | None:
    """Return how far a program lies from its file's addresses, as most of its mappings say: libffi
    from 3.4 on maps a page of its own code once more, elsewhere."""
    some = sorted(some, key=lambda one: not one.is_executable)
    votes = Counter(elf.find_bias(one.offset, one.start) for one in some)
    del votes[None]
    return max(votes, key=lambda bias: votes[bias], default=None)


def find_python(process: ProcessFiles, libraries: Libraries) -> Library | None:
    """Return the file with the interpreter: the program itself, or libpython."""
    exe = process.read_link("exe")
    names = [path for path in libraries.list_code() if "libpython" in os.path.basename(path)]
    for path in (*names, exe):
        library = libraries.open(path) if path in libraries.list_code() else None
        if library is not None and library.elf.find_symbols(["Py_IsInitialized"]):
            return library
    return None


def find_calls(python: Library, libc: list[Library]) -> tuple[list[tuple[int, bytes]], list[str]]:
    """Return address and first bytes of each of VISIT_CALLS, and the names that are missing."""
    found: dict[str, tuple[int, bytes]] = {}
    for library in (python, *libc):
        for name, symbol in library.elf.find_symbols(_core.VISIT_CALLS).items():
            proof = library.elf.read(symbol.address, _PROOF_BYTES)
            is_its = name.startswith("Py") == (library is python)
            if symbol.is_plain and is_its and name not in found and len(proof) == _PROOF_BYTES:
                found[name] = (library.bias + symbol.address, proof)
    missing = [name for name in _core.VISIT_CALLS if name not in found]
    return [found[name] for name in _core.VISIT_CALLS if name in found], missing


def find_restorer(process: ProcessFiles, libraries: Libraries, libc: list[Library]) -> int | None:
    """Return where the process has rt_sigreturn: in the C library, or in the kernel's page."""
    code = RESTORERS[os.uname().machine]
    for library in libc:
        at = library.elf.find_code(code)
        if at is not None:
            return library.bias + at
    if libraries.vdso is None:
        return None
    start, end = libraries.vdso.start, libraries.vdso.end
    with open(f"{process.folder}/mem", "rb", buffering=0) as memory:
        memory.seek(start)
        at = memory.read(end - start).find(code)
    return None if at < 0 else start + at
