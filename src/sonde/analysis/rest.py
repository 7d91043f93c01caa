"""Threads without work: at rest, as opposed to waiting for something that the program needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sonde.analysis.code_names import MINE, PYTHON, SONDE, name_module, skip_start

# An idle thread whose innermost frame is in one of these has nothing to do.
_RESTS = {"selectors", "socketserver", "threading.Thread.join",
          "threading.Thread._wait_for_tstate_lock"}  # fmt: skip
_CONSUMER = 2  # functions: the loop of a thread, and the one that it takes the next item by
# What watches over the program, and starts it anew when a file changes.
_WATCHERS = ("django.utils.autoreload", "uvicorn.supervisors.", "werkzeug._reloader")


class CodeFrame(Protocol):
    """What has to be known of a frame."""

    @property
    def func(self) -> str: ...
    @property
    def file(self) -> str: ...


def is_at_rest(
    frames: Sequence[CodeFrame], own: Callable[[str], str], *, is_main: bool, has_mine: bool
) -> bool:
    """Return whether an idle thread with these frames, root first, has nothing to do: a worker of a
    pool without a task, an event loop without an event. `own` says whose code a file is,
    `has_mine` whether any code of the program is the user's own."""
    frames = skip_start(frames)
    if not frames:
        return not is_main
    last = frames[-1]
    module = name_module(last.file)
    if module in _RESTS or f"{module}.{last.func}" in _RESTS or own(last.file) == SONDE:
        return True
    if not is_main and _takes_item(frames, own):
        return True
    caller = next((frame for frame in reversed(frames) if own(frame.file) != PYTHON), last)
    if name_module(caller.file).startswith(_WATCHERS):
        return True
    return not any(own(frame.file) == MINE for frame in frames) and (has_mine or not is_main)


def _takes_item(frames: Sequence[CodeFrame], own: Callable[[str], str]) -> bool:
    """Tell whether a thread of the program's own waits for an item of a queue: a consumer that has
    none has no work. What a server calls has: somebody waits for its answer. So has what is
    further in: it takes a connection from a pool, say, for the work that it does."""
    path = [frame for frame in frames if name_module(frame.file) != "threading"]
    if not path or name_module(path[-1].file) != "queue" or len(path) - 1 > _CONSUMER:
        return False
    takes = path[-1].func.rpartition(".")[2] == "get"
    return takes and all(own(frame.file) == MINE for frame in path[:-1])
