"""Stands in for the live trace until it is there: writes the whole file each time."""

from __future__ import annotations

from sonde import _core
from sonde.exporters import chrome
from sonde.output import write_file
from sonde.query import Recording
from sonde.selection import Profile, Selection
from sonde.session import Session
from sonde.window import Window


class LiveTrace:
    def __init__(self, session: Session, path: str, parts: list[str]) -> None:
        self._session, self._path = session, path

    def refresh(self, windows: list[int]) -> None:
        offset_ns = self._session.wall_offset_ns
        until_ns = windows[-1] if len(windows) % 2 == 0 else _core.clock_ns()
        window = Window(windows[0] + offset_ns - 1, until_ns + offset_ns)
        write_file(self._path, chrome, Profile(Recording([self._session]), Selection(window)))

    finish = refresh
