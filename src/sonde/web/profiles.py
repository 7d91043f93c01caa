"""Runs and snapshots on the page: when each was made, and how people open it."""

from __future__ import annotations

from typing import Any

from sonde.web.answer import PageAnswer
from sonde.web.opened import Opened

_RUNS = """\
SELECT session, pid, run, state, reason, name, tags, started_by, t_ns, end_t_ns FROM sonde.run
ORDER BY t_ns DESC LIMIT 100"""
# A snapshot is two files; that since the start has the time of all of them.
_SNAPSHOTS = """\
SELECT session, pid, number, kind, t_ns, end_t_ns, size_bytes, path FROM sonde.snapshot
WHERE kind <> 'total' ORDER BY end_t_ns DESC LIMIT 100"""


def read_profiles(opened: Opened) -> PageAnswer:
    """Return the newest runs and snapshots, with times that count from the base of the page."""
    offsets = {one.id: one.wall_offset_ns - opened.base_ns for one in opened.sessions}

    def place(sql: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = opened.recording.query(sql).to_pylist()
        for row in rows:
            offset = offsets[row["session"]]
            for name, column in (("from", "t_ns"), ("to", "end_t_ns")):
                ns = row.pop(column)
                row[name] = None if ns is None else ns + offset
        return rows

    return PageAnswer({"runs": place(_RUNS), "snapshots": place(_SNAPSHOTS)}, [_RUNS, _SNAPSHOTS])
