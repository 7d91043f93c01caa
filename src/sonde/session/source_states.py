"""The state of each source and sensor, as the recording itself has it: without Arrow."""

from __future__ import annotations

import os
import time

from sonde import launch
from sonde.session import crash_file, stack_table
from sonde.session.folder import Session
from sonde.session.missing_names import describe_missing_names
from sonde.session.shipped import describe_shipping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

Row = dict[str, object]

TABLE = "sonde.source_log"
_KEYS = ("source", "state", "detail", "t_ns")
_START_S = 10.0  # how long a collector may take until it is missed


def read_states(session: Session) -> list[Row]:
    """Return the newest state of each source and sensor of a session that has its rings still."""
    try:
        rows = list(stack_table.read_rows(session, TABLE))
    except FileNotFoundError:
        rows = []
    return choose_newest(session, rows)


def choose_newest(session: Session, rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the newest state of each source, and what the sources themselves cannot tell."""
    newest = {row["source"]: row for row in sorted(rows, key=lambda row: int(row["t_ns"]))}
    found = _miss_names(session)
    found += _miss_archive(session)
    found += _miss_crash(session)
    found += filter(None, [describe_shipping(session)])
    if newest.get("collector", {}).get("state") != "unavailable":  # else the job has said why
        found += _miss_collector(session)
    return found + [{key: row[key] for key in _KEYS} for _, row in sorted(newest.items(), key=str)]


def _miss_crash(session: Session) -> list[Row]:
    """Return a row if the native stacks of a crash are there, and nobody has unwound them."""
    try:
        t_ns = os.stat(session.path(crash_file.NAME)).st_mtime_ns - session.wall_offset_ns
    except OSError:
        return []
    if session.is_alive():
        return []
    why = "no collector has unwound the native stacks yet: the next recording starts one"
    return [dict(zip(_KEYS, ("stack.crash", "unavailable", why, t_ns), strict=True))]


def _miss_collector(session: Session) -> list[Row]:
    """Return a row if a live session should have a collector and has none: nobody else tells."""
    root = os.path.dirname(session.folder)
    if not session.is_here() or not session.is_alive() or launch.has_collector(root):
        return []
    if not session.read_config()["collector"]:
        return []
    since_ns, state, detail = session.start_wall_ns, "unavailable", "no collector is running"
    try:
        with open(launch.collector_report(root), encoding="utf-8", errors="replace") as file:
            state, detail = "failed", file.read(1000).strip()
            since_ns = os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        if time.time_ns() - since_ns < _START_S * 1e9:
            return []
    t_ns = since_ns - session.wall_offset_ns
    return [{"source": "collector", "state": state, "detail": detail, "t_ns": t_ns}]


def _miss_archive(session: Session) -> list[Row]:
    """Return a row if the collector of a live session cannot archive."""
    root = os.path.dirname(session.folder)
    if not session.is_here() or not session.is_alive() or not launch.has_collector(root):
        return []
    why = launch.read_archive_problem(root)
    if why is None or not session.read_config()["archive"]:
        return []
    return [{"source": "archive", "state": "unavailable", "detail": why, "t_ns": None}]


def _miss_names(session: Session) -> list[Row]:
    """Return a row for each table of names that is full; since when is not known."""
    return [
        {"source": table, "state": "full", "detail": line, "t_ns": None}
        for table, line in describe_missing_names([session]).items()
    ]
