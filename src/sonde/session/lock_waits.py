"""Read who holds the lock that a thread waits for, without Arrow."""

from __future__ import annotations

from sonde.session import stack_table
from sonde.session.folder import Session
from sonde.session.held_lock import HeldLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

TABLE = "python.lock_wait"


def take_newest(rows: Iterable[Mapping[str, Any]]) -> dict[int, HeldLock]:
    """Return the newest row of each thread, of rows in the order of time."""
    return {row["thread"]: HeldLock(row) for row in rows}


def read_lock_waits(session: Session) -> dict[int, HeldLock]:
    """Return what was last seen of each thread that has ever waited for a lock for long."""
    try:
        return take_newest(stack_table.read_rows(session, TABLE))
    except FileNotFoundError:  # an older recording, or its rings are archived
        return {}


def add_locks(threads: Iterable[stack_table.ThreadStack], waits: Mapping[int, HeldLock]) -> None:
    """Give each thread that waits for a lock what is known of it, unless it moved since."""
    for one in threads:
        found = waits.get(one.thread)
        is_current = found is not None and (one.since_ns is None or found.t_ns >= one.since_ns)
        if one.idle and one.wait == "lock" and is_current:
            one.lock = found
