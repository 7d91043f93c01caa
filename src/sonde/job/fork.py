"""Hooks for a recording whose process forks, and for the end of a forked process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

from sonde import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    T = TypeVar("T")

    class Forking(Protocol):
        """The object whose methods are called at forks: the recorder. None of them may raise."""

        def rest(self) -> None: ...
        def wake(self) -> None: ...
        def leave_parent(self) -> None: ...


def watch_forks(recorder: Forking) -> None:
    """Have `rest` called before each fork, `wake` after it in the parent, and `leave_parent` in the
    child. Call this once: fork hooks cannot be removed."""
    os.register_at_fork(
        before=recorder.rest,
        # Python 3.13 counts threads after this hook and warns about them, so ours must come back
        # only when fork() has returned. `soon` is in C because a Python one would run too early,
        # in the hook itself.
        after_in_parent=partial(_core.soon, recorder.wake)
        if sys.version_info >= (3, 13)
        else recorder.wake,
        after_in_child=recorder.leave_parent,
    )


def end_with_multiprocessing(owner: T, at_exit: Callable[[T], object]) -> None:
    """Have `at_exit(owner)` called when a multiprocessing child ends.

    Such a child leaves through os._exit after running its finalizers; `at_exit` becomes one."""

    def finalize(one: T) -> None:
        sys.modules["multiprocessing.util"].Finalize(None, at_exit, (one,), exitpriority=-100)

    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # A finalizer registered right now would be cleared when the child's bootstrap begins.
        util.register_after_fork(owner, finalize)
