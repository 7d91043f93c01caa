"""Read who holds the lock that a thread waits for, without Arrow."""

from __future__ import annotations

from sonde.session import stack_table
from sonde.session.folder import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

TABLE = "python.lock_wait"
THREAD = "thread"  # the kind of lock that is held by a thread until it ends


class HeldLock:
    """A thread that waits for a lock, as it was seen at one moment."""

    __slots__ = ("holder", "kind", "lock", "since_ns", "t_ns", "taken", "thread")

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.thread, self.t_ns, self.since_ns = row["thread"], row["t_ns"], row["since_ns"]
        self.lock, self.kind = row["lock"], row["kind"]
        self.holder: int | None = row["holder"] if (row["holder"] or -1) >= 0 else None
        self.taken: tuple[str, str, int] | None = None  # function, file and line of the `with`
        if row["taken_file"] is not None:
            self.taken = row["taken_func"], row["taken_file"], row["taken_lineno"]


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
