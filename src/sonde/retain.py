"""Retention: how long and how much is kept. What goes first is what ended first."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping

from sonde import archive
from sonde.errors import Error
from sonde.session import Session, list_folders

Limits = Mapping[str, object]


def enforce_limits(root: str, limits: Limits, now_s: float | None = None) -> list[str]:
    """Remove ended sessions past their age, then, oldest first, until the rest fits; the ids gone.

    A running session is never removed; if it alone is too large, its oldest segments go."""
    now_s = time.time() if now_s is None else now_s
    age, room = limits["retain.age"], limits["retain.bytes"]
    assert isinstance(age, (int, float)) and isinstance(room, int)
    sessions = [session for folder in list_folders(root) if (session := _open(folder))]
    gone = []
    for session in list(sessions):
        end = _find_end_s(session)
        if end is not None and now_s - end > age:
            gone.append(_remove(root, session))
            sessions.remove(session)
    sizes = {session.folder: measure_bytes(session.folder) for session in sessions}
    over = sum(sizes.values()) - room
    for session in sorted(sessions, key=lambda one: _find_end_s(one) or 0.0):
        if over > 0 and _find_end_s(session) is not None:
            over -= sizes[session.folder]
            gone.append(_remove(root, session))
            sessions.remove(session)
    if over > 0:
        _trim(sessions, over)
    return gone


def _open(folder: str) -> Session | None:
    try:
        session = Session(folder)
    except Error:
        return None
    return session if session.host == os.uname().nodename else None


def _find_end_s(session: Session) -> float | None:
    """When an ended session ended; None while it runs."""
    if session.is_alive():
        return None
    sealed = session.read_sealed() or {}
    end = sealed.get("end_wall_ns")
    if isinstance(end, int):
        return end / 1e9
    return os.stat(session.folder).st_mtime


def measure_bytes(folder: str) -> int:
    """What a folder really takes on disk."""
    total = 0
    for path, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _remove(root: str, session: Session) -> str:
    # Renamed first: a session is there as a whole or not at all.
    gone = os.path.join(root, f".{session.id}.gone")
    os.rename(session.folder, gone)
    shutil.rmtree(gone, ignore_errors=True)
    return session.id


def _trim(sessions: list[Session], over: int) -> None:
    """Remove the oldest archived segments of running sessions until `over` bytes are free."""
    found = [
        (
            os.stat(segment.path).st_mtime,
            os.stat(segment.path).st_blocks * 512,
            session,
            table,
            segment,
        )
        for session in sessions
        for table in archive.list_tables(session)
        # The newest one stays: its name says how far the ring has been archived.
        for segment in archive.list_segments(session, table)[:-1]
    ]
    for _when, size, session, table, segment in sorted(found, key=lambda entry: entry[0]):
        if over <= 0:
            return
        archive.expire(session, table, segment)
        over -= size
