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
        self._settle, self._forks = settle, _core.forks()
        # One for each process: a thread of the parent may have held the parent's, and that thread
        # does not exist in the child.
        self._locks = {self._forks: RLock()}

    def __enter__(self) -> None:
        forks = _core.forks()
        self._locks.setdefault(forks, RLock()).acquire()  # the same one for all threads
        if self._forks != forks:
            self._forks = forks
            self._settle()

    def __exit__(self, *_error: object) -> None:
        self._locks[self._forks].release()

    def is_inherited(self) -> bool:
        """Tell whether the state is a parent's."""
        return self._forks != _core.forks()


def watch_forks(at_multiprocessing: Callable[[], bool]) -> None:
    """Have the native thread rest during each fork; and call `at_multiprocessing` once, before the
    first fork of a program that uses that module. Call this once: fork hooks cannot be removed."""
    _core.fork_after_import("multiprocessing.util", at_multiprocessing)
    os.register_at_fork(
        before=_core.fork_rest, after_in_parent=_core.fork_wake, after_in_child=_core.fork_child
    )


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
