"""Read which line of a program started a process, without Arrow."""

from __future__ import annotations

from collections.abc import Iterable

from sonde.errors import Damaged, Newer
from sonde.session import stack_table
from sonde.session.folder import Session

TABLE = "python.spawn"


def find_starters(sessions: Iterable[Session]) -> dict[str, tuple[str, int]]:
    """Return file and line that started each process, by session, where its parent is recorded and
    not archived yet."""
    by_process: dict[tuple[str, int], list[Session]] = {}
    for one in sessions:
        by_process.setdefault((one.host, one.meta.ppid), []).append(one)
    found: dict[str, tuple[str, int]] = {}
    for parent in sessions:
        children = by_process.get((parent.host, parent.pid), [])
        starters = _read_starters(parent) if children else {}
        for child in children:
            if child.pid in starters and child.start_wall_ns >= parent.start_wall_ns:
                found[child.id] = starters[child.pid]
    return found


def _read_starters(parent: Session) -> dict[int, tuple[str, int]]:
    """Return file and line by pid; of several processes that had one pid, of the newest."""
    try:
        rows = list(stack_table.read_rows(parent, TABLE))
    except (FileNotFoundError, Damaged, Newer):
        return {}
    return {row["child"]: (row["file"], row["lineno"]) for row in rows if row["file"] is not None}
