"""What becomes of a recording when its process forks, and at the end of a forked process."""

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
        """Whoever is told of forks: the recorder. None of these may raise."""

        def rest(self) -> None: ...
        def wake(self) -> None: ...
        def leave_parent(self) -> None: ...


def watch_forks(recorder: Forking) -> None:
    """Have `rest` called before each fork, `wake` after it in the parent, and `leave_parent` in the
    child. To be called once: what is called at a fork cannot be taken out again."""
    os.register_at_fork(
        before=recorder.rest,
        # 3.13 counts threads after this hook, to warn of them: ours comes back when fork() has
        # returned. In C, or it would come back in the hook itself.
        after_in_parent=partial(_core.soon, recorder.wake)
        if sys.version_info >= (3, 13)
        else recorder.wake,
        after_in_child=recorder.leave_parent,
    )


def end_with_multiprocessing(owner: T, at_exit: Callable[[T], object]) -> None:
    """Have `at_exit(owner)` called when a multiprocessing child ends.

    Such a child leaves by os._exit, after its own finalizers: `at_exit` becomes one of them."""

    def finalize(one: T) -> None:
        sys.modules["multiprocessing.util"].Finalize(None, at_exit, (one,), exitpriority=-100)

    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # Finalizers that are registered now are cleared when the child's bootstrap begins.
        util.register_after_fork(owner, finalize)
