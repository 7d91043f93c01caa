"""Have the exit status of this process recorded: nobody can ask for it once the process is gone.

Only the parent learns how a process has ended, before Linux 6.15. So the process writes it down
itself: as the last thing that it does, and before os._exit, which runs no exit hook. What it ends
with does not change."""

from __future__ import annotations

import os

from sonde import _core


def watch(page: _core.Map) -> None:
    """Have the status written to this control page when the process ends."""
    _core.exit_watch(page)
    # A parent's hook does as well: it leads to the page of the process that it is called in.
    if not isinstance(vars(os)["_exit"], _core.ChainedHook):
        vars(os)["_exit"] = _core.ChainedHook(_core.exit_tell, os._exit)


def forget() -> None:
    """Leave the end of this process alone again."""
    _core.exit_watch(None)
    hook = vars(os)["_exit"]
    if isinstance(hook, _core.ChainedHook):  # else the program has put its own in front
        vars(os)["_exit"] = hook.previous
