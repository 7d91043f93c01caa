"""Retention: how long and how much is kept. What is oldest goes first."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

from sonde.errors import Error
from sonde.session import Session, captures, crash_file, list_folders, snapshots
from sonde.session.ending import find_end_wall_ns
from sonde.session.files import remove_quietly
from sonde.session.memory_limit import find_memory_limit
from sonde.settings import Value
from sonde.store import archive

Limits = Mapping[str, Value]

EVERY_S = 30.0
SPARE = (
    16  # one part in this many is freed beyond the limit, and may be archived before we look again
)
MEMORY_SHARE = 8  # where files are memory, all recordings take one part in this many of it
STALE_S = 60.0  # a folder that never became a session is removed after this
COPIES_S = 600.0  # copies of stacks that nobody has unwound by then are removed
REST = 20  # looking at many sessions takes long: rest this many times as long


class Retention:
    """Enforces the limits of a root: now and then, and at once when much has been archived."""

    def __init__(self, root: str, limits: Limits) -> None:
        most = (find_memory_limit(root) or 2**62) // MEMORY_SHARE
        room = min(int(limits["retain.bytes"]), most)
        self._root, self._limits = root, {**limits, "retain.bytes": room}
        self._last_s, self._took_s = float("-inf"), 0.0
        self._archived_bytes = 0

    def run(self, now_s: float, archived_bytes: int) -> None:
        """Enforce the limits if it is time; `archived_bytes` were added since the last call."""
        self._archived_bytes += archived_bytes
        is_much = self._archived_bytes * SPARE > int(self._limits["retain.bytes"])
        if now_s - self._last_s < (REST * self._took_s if is_much else EVERY_S):
            return
        self._last_s, self._archived_bytes = now_s, 0
        begin_s = time.monotonic()
        enforce_limits(self._root, self._limits)
        remove_old_copies(self._root)
        self._took_s = time.monotonic() - begin_s


def enforce_limits(root: str, limits: Limits, now_s: float | None = None) -> list[str]:
    """Remove ended sessions past their age, then the oldest until the rest fits; return their ids.

    Everything counts, live sessions as well. A live session and the one that ended last are never
    removed for their size: they lose their oldest rows. So does any other if that is enough."""
    now_s = time.time() if now_s is None else now_s
    age, room = float(limits["retain.age"]), int(limits["retain.bytes"])
    running, ended = _list_all(root)
    gone = [session for session, end in ended if now_s - end > age]
    left = [session for session, end in ended if now_s - end <= age]
    over = sum(measure_bytes(session.folder) for session in [*running, *left]) - room
    if over > 0:
        over += room // SPARE
    while over > 0 and len(left) > 1 and sum(map(_size, _list_pieces(left[0]))) < over:
        over -= measure_bytes(left[0].folder)
        gone.append(left.pop(0))
    for session in gone:
        _remove(root, session)
    if over > 0 and len(left) > 1:
        _trim(left[:1], over)
    elif over > 0:
        _trim([*left, *running], over)
    return [session.id for session in gone]


def _list_all(root: str) -> tuple[list[Session], list[tuple[Session, float]]]:
    """Return live sessions, and ended ones by their end; unreadable ones are left alone."""
    running, ended = [], []
    for folder in list_folders(root):
        try:
            session = Session(folder)
            if session.is_alive():
                running.append(session)
            elif (end := _find_end_s(session)) is not None:
                ended.append((session, end))
        except (Error, OSError):
            continue
    return running, sorted(ended, key=lambda entry: entry[1])


def _find_end_s(session: Session) -> float | None:
    """Return when a session ended; None if another machine may still be writing it."""
    sealed = session.read_sealed()
    if sealed is not None:
        return sealed.end_wall_ns / 1e9
    return find_end_wall_ns(session) / 1e9 if session.host == os.uname().nodename else None


def measure_bytes(folder: str) -> int:
    """Return how much room a folder takes on disk."""
    total = 0
    for entry in archive.iter_files(folder):
        try:
            total += entry.stat(follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def _remove(root: str, session: Session) -> None:
    # Renamed first, so that nobody sees half a session.
    gone = os.path.join(root, f".{session.id}.{time.time_ns()}.gone")
    os.rename(session.folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


# ---- parts of a session ---------------------------------------------------------------------

# What can be taken from a session that stays: the rank and the time by which it is sorted, its
# bytes, and how it is removed.
_Piece = tuple[int, int, int, Callable[[], None]]


def _size(piece: _Piece) -> int:
    return piece[2]


def _trim(sessions: list[Session], over: int) -> None:
    """Remove the oldest segments of these sessions until `over` bytes are free; if that is not
    enough, their oldest snapshots and captures."""
    with archive.changing:
        pieces = [piece for session in sessions for piece in _list_pieces(session)]
        for _rank, _t_ns, size, remove in sorted(pieces, key=lambda piece: piece[:2]):
            if over <= 0:
                return
            remove()
            over -= size


def _list_pieces(session: Session) -> Iterator[_Piece]:
    """Yield what can be removed; the newest of everything stays."""
    for table in archive.list_tables(session):
        newer_ns = 2**63
        # The newest segment stays: its name says how far the ring has been archived.
        for segment in archive.list_segments(session, table)[-2::-1]:
            status = os.stat(segment.path)
            # A merge makes a file that is younger than the rows after it.
            newer_ns = min(newer_ns, status.st_mtime_ns)
            expire = partial(archive.expire, session, table, segment)
            yield 0, newer_ns, status.st_blocks * 512, expire
    for folder, suffix in ((snapshots.FOLDER, ".prof"), (captures.FOLDER, captures.PACKED)):
        found = _list_files(session.path(folder), suffix)
        for t_ns, size, path in found[: -2 if suffix == ".prof" else -1]:
            yield 1, t_ns, size, partial(remove_quietly, path)


def _list_files(folder: str, suffix: str) -> list[tuple[int, int, str]]:
    """Return when the files of a folder were written, their sizes and their paths, oldest first."""
    try:
        with os.scandir(folder) as entries:
            found = [(one.stat(follow_symlinks=False), one.path) for one in entries
                     if one.name.endswith(suffix)]  # fmt: skip
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((status.st_mtime_ns, status.st_blocks * 512, path) for status, path in found)


def remove_old_copies(root: str) -> None:
    """Remove the copies of stacks that programs have left at a fault and nobody has unwound, such
    as those of a machine that is gone: they may hold secrets."""
    for folder in list_folders(root):
        path = os.path.join(folder, crash_file.NAME)
        with suppress(FileNotFoundError):
            is_old = time.time() - os.lstat(path).st_mtime > COPIES_S
            if is_old and not _is_to_be_unwound(folder):
                remove_quietly(path)


def _is_to_be_unwound(folder: str) -> bool:
    """Return whether the collector of this machine has still to do so, or is about to."""
    try:
        session = Session(folder)
        is_here = session.host == os.uname().nodename
        return is_here and session.read_sealed() is None and not session.is_alive()
    except (Error, OSError):
        return False


def remove_leftovers(root: str) -> None:
    """Remove folders whose creation or removal was interrupted."""
    for name in os.listdir(root):
        if name.startswith(".") and name.endswith((".new", ".gone")):
            path = os.path.join(root, name)
            with suppress(FileNotFoundError):  # it may have been renamed just now
                if time.time() - os.lstat(path).st_mtime > STALE_S:
                    shutil.rmtree(path, ignore_errors=True)
