"""What is known of a lock that a thread waits for."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

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
