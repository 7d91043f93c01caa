"""A recording as notebooks show it: its processes as a table."""

from __future__ import annotations

from collections.abc import Sequence

from sonde.markup import show_box, show_table
from sonde.session import Session
from sonde.words import name_program, show_moment


def show_processes(sessions: Sequence[Session], most: int) -> str:
    """Return HTML with the first of these processes, up to `most`."""
    rows = [
        (str(one.pid), one.rank, one.host, one.find_state(), show_moment(one.start_wall_ns),
         name_program(one.meta.argv))
        for one in sessions[:most]
    ]  # fmt: skip
    left = len(sessions) - len(rows)
    lines = [f"{left} more are not shown"] if left else []
    title = "A recording: .query(sql) asks it, .tables() lists its tables"
    names = ("pid", "rank", "host", "state", "start", "program")
    return show_box(title, lines, show_table(names, rows))
