"""Retention: how long and how much is kept. Sessions that ended first are removed first."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping

from sonde.collector.drain import find_end_wall_ns
from sonde.errors import Error
from sonde.session import Session, list_folders
from sonde.settings import Value
from sonde.store import archive

Limits = Mapping[str, Value]


def enforce_limits(root: str, limits: Limits, now_s: float | None = None) -> list[str]:
    """Remove ended sessions past their age, then the oldest until the rest fits; return their ids.

    A live session is never removed; if it alone is too large, its oldest segments are. The rings
    of a live session are its working memory and do not count."""
    now_s = time.time() if now_s is None else now_s
    age, room = float(limits["retain.age"]), int(limits["retain.bytes"])
    running, ended = _list_all(root)
    gone = [session for session, end in ended if now_s - end > age]
    left = [session for session, end in ended if now_s - end <= age]
    over = sum(map(measure_kept, [*running, *left])) - room
    while over > 0 and left:
        over -= measure_kept(left[0])
        gone.append(left.pop(0))
    for session in gone:
        _remove(root, session)
    if over > 0:
        _trim(running, over)
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


def measure_kept(session: Session) -> int:
    """Return the bytes that count: all of an ended session, the archive of a live one."""
    return measure_bytes(session.path(archive.FOLDER) if session.is_alive() else session.folder)


def measure_bytes(folder: str) -> int:
    """Return how much room a folder takes on disk."""
    total = 0
    for path, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _remove(root: str, session: Session) -> None:
    # Renamed first, so that nobody sees half a session.
    gone = os.path.join(root, f".{session.id}.{time.time_ns()}.gone")
    os.rename(session.folder, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _trim(sessions: list[Session], over: int) -> None:
    """Remove the oldest archived segments of live sessions until `over` bytes are free."""
    with archive.changing:
        found = [
            (os.stat(segment.path), session, table, segment)
            for session in sessions
            for table in archive.list_tables(session)
            # The newest one stays: its name says how far the ring has been archived.
            for segment in archive.list_segments(session, table)[:-1]
        ]
        for status, session, table, segment in sorted(found, key=lambda entry: entry[0].st_mtime):
            if over <= 0:
                return
            archive.expire(session, table, segment)
            over -= status.st_blocks * 512
