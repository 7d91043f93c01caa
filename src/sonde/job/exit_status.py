"""Have the exit status of this process recorded: nobody can ask for it once the process is gone.

Only the parent learns how a process has ended, before Linux 6.15. So the process writes it down
itself: as the last thing that it does, and before os._exit, which runs no exit hook. What it ends
with does not change."""

from __future__ import annotations

import os
import sys

from sonde import _core

_PLACES = "os", "posix"  # where programs know os._exit


class _Cover:
    """The function of ours in front of os._exit, while there is one."""

    def __init__(self) -> None:
        self._hook: _core.ChainedHook | None = None

    def put(self) -> None:
        # A parent's does as well: it leads to the page of the process that it is called in.
        if self._hook is None or vars(os)["_exit"] is not self._hook.function:
            self._hook = _core.ChainedHook(_core.exit_tell, os._exit)
            _replace(self._hook.previous, self._hook.function)

    def take_away(self) -> None:
        if self._hook is not None:  # if the program has put its own in front, that stays
            _replace(self._hook.function, self._hook.previous)


_cover = _Cover()


def watch(page: _core.Map) -> None:
    """Have the status written to this control page when the process ends."""
    _core.exit_watch(page)
    _cover.put()


def forget() -> None:
    """Leave the end of this process alone again."""
    _core.exit_watch(None)
    _cover.take_away()


def _replace(old: object, new: object) -> None:
    for name in _PLACES:
        inside = vars(sys.modules[name])
        if inside.get("_exit") is old:
            inside["_exit"] = new
