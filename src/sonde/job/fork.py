"""Hooks for a recording whose process forks, and for the end of a forked process."""

from __future__ import annotations

import os
import sys
from _thread import RLock  # `threading` would be one more import in the job

from sonde import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

DELAY_NS = 100_000_000  # most children have ended by then, or have become another program


class ForkLock:
    """A lock for state that a forked child inherits: the first to take it there calls `settle`,
    with the lock held. Nothing is done at the fork itself, since most children never need it."""

    def __init__(self, settle: Callable[[], object]) -> None:
        self._lock, self._settle, self._forks = RLock(), settle, _core.forks()
        # A thread of the parent may have held the lock. That thread does not exist in the child.
        self.renew = self._lock._at_fork_reinit  # type: ignore[attr-defined]

    def __enter__(self) -> None:
        self._lock.acquire()
        if self.is_inherited():
            self._forks = _core.forks()
            self._settle()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def is_inherited(self) -> bool:
        """Tell whether the state is a parent's."""
        return self._forks != _core.forks()


def watch_forks(lock: ForkLock, before: Callable[[], object]) -> None:
    """Have `before` called before each fork, and the native thread rest meanwhile. Call this once:
    fork hooks cannot be removed."""
    # Python calls the hooks before a fork in reverse order: `before` comes first.
    os.register_at_fork(
        before=_core.fork_rest, after_in_parent=_core.fork_wake, after_in_child=lock.renew
    )
    os.register_at_fork(before=before, after_in_child=_core.fork_child)


def end_with_multiprocessing(owner: T, at_exit: Callable[[T], object]) -> bool:
    """Have `at_exit(owner)` called when a multiprocessing child ends. Return False if the program
    has not imported multiprocessing yet.

    Such a child leaves through os._exit after running its finalizers; `at_exit` becomes one."""

    def finalize(one: T) -> None:
        sys.modules["multiprocessing.util"].Finalize(None, at_exit, (one,), exitpriority=-100)

    util = sys.modules.get("multiprocessing.util")
    if util is None or not hasattr(util, "register_after_fork"):
        return False
    # A finalizer registered right now would be cleared when the child's bootstrap begins.
    util.register_after_fork(owner, finalize)
    return True
