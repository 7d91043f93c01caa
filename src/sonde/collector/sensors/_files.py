"""The files that sensors read, each once per reading, and the last values of counters."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from sonde import _core

Row = tuple[type, tuple[object, ...]]
T = TypeVar("T")

_CHUNK = 65536
# A file of /proc comes in pieces of about a page; a much shorter piece is the last.
_LAST = 1024
_MAX_COUNTERS = 2**16  # whose last values are kept; beyond that, the longest unread are forgotten
_FILES = 4096
_UNUSED_READINGS = 16  # a file that nobody has read for this long is closed


class Held:
    """Files that stay open, and the reading that used them last."""

    __slots__ = ("files", "number")

    def __init__(self, files: list[int], number: int) -> None:
        self.files, self.number = files, number


class Reader:
    """Reads files of the machine, one reading after the other.

    Files stay open: reading a process's `stat` again takes 2.5 µs, opening it 15 µs; and an open
    file never becomes that of another process."""

    def __init__(
        self,
        proc: str = "/proc",
        sys: str = "/sys",
        *,
        clock: Callable[[], int] = _core.clock_ns,
        files: int | None = None,
    ) -> None:
        self.proc, self.sys, self.clock = proc, sys, clock
        self.number = 0  # of the current reading
        self.is_real = proc == "/proc"  # otherwise it is a test's folder
        # Keep open at most half as many files as the process may have.
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._files = min(limit // 2, _FILES) if files is None else files
        self._open: dict[str, list[int]] = {}  # path -> file, and the reading that used it last
        self._held: dict[Hashable, Held] = {}
        self._borrowed: list[int] = []
        self._read: dict[str, tuple[int, bytes]] = {}
        self._shared: dict[Callable[[Reader], object], object] = {}

    def begin(self) -> None:
        """Begin the next reading: everything is read again."""
        self.number += 1
        self._read.clear()
        if self.number % _UNUSED_READINGS == 0:
            oldest = self.number - _UNUSED_READINGS
            for path in [path for path, (_, last) in self._open.items() if last < oldest]:
                self._close(path)
            for key in [key for key, one in self._held.items() if one.number < oldest]:
                self.forget(key)

    def close(self) -> None:
        """Close all files and everything that the sensors share."""
        for path in list(self._open):
            self._close(path)
        for key in list(self._held):
            self.forget(key)
        for shared in self._shared.values():
            getattr(shared, "close", lambda: None)()
        self._shared.clear()

    def share(self, make: Callable[[Reader], T]) -> T:
        """Return the one object of a class that all sensors share."""
        if make not in self._shared:
            self._shared[make] = make(self)
        return self._shared[make]  # type: ignore[return-value]

    def read(self, path: str, *, keep: bool = True) -> tuple[int, bytes]:
        """Return when a file was read in this reading, and its contents; raise OSError if that
        fails. `keep` leaves it open; do not use it for a file that would keep something of the job
        alive."""
        found = self._read.get(path)
        if found is None:
            data = self._read_kept(path) if keep else self._read_once(path)
            found = self._read[path] = (self.clock(), data)
        return found

    def open(self, key: Hashable, path: str, *more: str) -> list[int]:
        """Open files for reading until shut(); the next reading finds them again by `key`.

        Raise OSError if the first cannot be opened; any other that cannot is -1."""
        held = self._held.get(key)
        if held is not None:
            held.number = self.number
            return held.files
        found = [os.open(path, os.O_RDONLY | os.O_CLOEXEC)]
        for other in more:
            try:
                found.append(os.open(other, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                found.append(-1)
        if len(self._open) + len(self._held) * len(found) < self._files:
            self._held[key] = Held(found, self.number)
        else:
            self._borrowed += found
        return found

    def shut(self) -> None:
        """Close what open() returned, unless it is kept."""
        if self._borrowed:
            _close_all(self._borrowed)
            self._borrowed.clear()

    def forget(self, key: Hashable) -> None:
        """Close the files known by this key: what they belong to is gone."""
        if key in self._held:
            _close_all(self._held.pop(key).files)

    def _read_kept(self, path: str) -> bytes:
        entry = self._open.get(path)
        if entry is None:
            if len(self._open) >= self._files:
                return self._read_once(path)
            entry = self._open[path] = [os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0]
        entry[1] = self.number
        try:
            return _read_all(entry[0])
        except OSError:
            self._close(path)  # the process or device is gone; another may get its name
            raise

    def _read_once(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _read_all(fd)
        finally:
            os.close(fd)

    def _close(self, path: str) -> None:
        os.close(self._open.pop(path)[0])


def _close_all(files: Iterable[int]) -> None:
    for fd in files:
        if fd >= 0:
            os.close(fd)


def _read_all(fd: int) -> bytes:
    data = os.pread(fd, _CHUNK, 0)
    piece = data
    while len(piece) >= _LAST:
        piece = os.pread(fd, _CHUNK, len(data))
        data += piece
    return data


class Past:
    """The values of counters at the previous reading."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[int, Sequence[int]]] = {}

    def move(
        self, key: Hashable, now_ns: int, counts: Sequence[int]
    ) -> tuple[int, list[int]] | None:
        """Return how long ago the previous reading was, and how much each counter has grown since.

        Return None at the first reading, if there are no counters, or if one has shrunk: it wrapped
        or was reset, so nobody knows how much it counted."""
        before = self._seen.pop(key, None)
        self._seen[key] = (now_ns, counts)
        if len(self._seen) > _MAX_COUNTERS:
            del self._seen[next(iter(self._seen))]  # the longest unread
        if before is None or now_ns <= before[0] or len(counts) != len(before[1]) or not counts:
            return None
        grown = [new - old for new, old in zip(counts, before[1], strict=True)]
        return None if min(grown) < 0 else (now_ns - before[0], grown)

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Forget these counters: whatever gets their names later starts from zero."""
        for key in keys:
            self._seen.pop(key, None)


def read_numbers(data: bytes) -> dict[bytes, int]:
    """Return the numbers of lines such as `name 12` or `name: 12 kB`; skip other lines."""
    found = {}
    for line in data.splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            found[words[0].rstrip(b":")] = int(words[1])
    return found
