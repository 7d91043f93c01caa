"""Hooks for a recording whose process forks, and for the end of a forked process."""

from __future__ import annotations

import os
import sys
from _thread import RLock  # `threading` would be one more import in the job

from sonde import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

DELAY_NS = 100_000_000  # most children have ended by then, or have become another program


class ForkLock:
    """A lock for state that a forked child inherits: the first to take it there calls `settle`,
    with the lock held. Nothing is done at the fork itself, since most children never need it."""

    def __init__(self, settle: Callable[[], object]) -> None:
        self._settle, self._forks, self._wanted = settle, _core.forks(), -1
        # One for each process: a thread of the parent may have held the parent's, and that thread
        # does not exist in the child.
        self._locks = {self._forks: RLock()}

    def __enter__(self) -> None:
        forks = _core.forks()
        self._locks.setdefault(forks, RLock()).acquire()  # the same one for all threads
        if self._forks != forks:
            self._forks = forks
            _core.fork_settled()
            self._settle()

    def __exit__(self, *_error: object) -> None:
        self._locks[self._forks].release()

    def want(self) -> None:
        """In a child that has something to write: have the state settled before it ends."""
        self._wanted = _core.forks()
        _core.fork_settled()

    def is_wanted(self) -> bool:
        """Tell whether this process has called `want`."""
        return self._wanted == _core.forks()

    def is_inherited(self) -> bool:
        """Tell whether the state is a parent's."""
        return self._forks != _core.forks()


def watch_forks(at_exit: Callable[[], object]) -> None:
    """Have the native thread rest during each fork, and `at_exit` called when a child of
    multiprocessing ends. Call this once: fork hooks cannot be removed."""
    _core.fork_after_import("multiprocessing.util", lambda: end_with_multiprocessing(at_exit))
    os.register_at_fork(
        before=_core.fork_rest, after_in_parent=_core.fork_wake, after_in_child=_core.fork_child
    )


_finalizers: list[Callable[[], object]] = []  # multiprocessing itself refers to them weakly


def end_with_multiprocessing(at_exit: Callable[[], object]) -> bool:
    """Have `at_exit` called when a multiprocessing child ends, before any given earlier.
    Return False if the program has not imported multiprocessing yet.

    Such a child leaves through os._exit after running its finalizers; `at_exit` becomes one."""
    util = sys.modules.get("multiprocessing.util")
    if util is None or not hasattr(util, "_finalizer_registry"):  # the last that we use of it
        return False
    import functools  # multiprocessing has imported it as well

    # A finalizer registered right now would be cleared when the child's bootstrap begins. This one
    # is put into its place without any Python code, which would make the child copy the pages of
    # all objects that the code touches: that takes longer than the code itself.
    key = (-100, len(_finalizers))
    _finalizers.append(at_exit)
    util.register_after_fork(at_exit, functools.partial(util._finalizer_registry.__setitem__, key))
    return True
