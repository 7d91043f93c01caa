"""Processes that the program starts, each with its line."""

from __future__ import annotations

import os
import sys
from _thread import get_native_id

from sonde import _core
from sonde.job.source_context import SourceContext
from sonde.tables.spawn import Spawn

ON = True
NEEDS = ()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

# By the name of the function.
_HOW = {"fork_exec": "exec", "posix_spawn": "posix_spawn", "posix_spawnp": "posix_spawn"}
_LIBRARY = os.path.dirname(os.__file__) + "/"
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + "/"
_PACKAGES = ("/site-packages/", "/dist-packages/")
_OWN, _PACKAGE, _PYTHON = 1, 2, 3
_owners: dict[str, int] = {}  # by file
_MOST_FILES = 1000
_MOST_CHARS = 200  # of a program's name


class _Seam:
    """Stands in front of the functions that all of Python's library starts processes with.
    There is one for the life of the process: a forked child finds it in place.

    Forks have no row: code that runs right after one writes to pages that both processes still
    share, so that noting a fork took a tenth of its time, and half of it on a busy machine."""

    def __init__(self) -> None:
        self.listener: Callable[..., object] | None = None
        self._covers: dict[str, tuple[Any, Any]] = {}  # by name: the function, and ours

    def open(self, listener: Callable[..., object]) -> None:
        self.listener = listener
        import _posixsubprocess  # a few functions in C; `subprocess` takes ours when it is imported

        originals: tuple[Any, ...] = (
            _posixsubprocess.fork_exec, os.posix_spawn, os.posix_spawnp,
        )  # fmt: skip
        for original in originals:
            name = original.__name__
            # What somebody else has put there is no built-in function, and stays.
            if name not in self._covers and type(original) is type(len):
                self._covers[name] = original, _core.cover_spawner(original, self._note_spawn)
        self._exchange(0, 1)

    def close(self) -> None:
        self.listener = None
        self._exchange(1, 0)

    def _exchange(self, old: int, new: int) -> None:
        """Put one function of each pair in the place of the other, wherever that stands."""
        places = (("_posixsubprocess", "fork_exec", "fork_exec"),
                  ("subprocess", "_fork_exec", "fork_exec"),
                  ("os", "posix_spawn", "posix_spawn"),
                  ("posix", "posix_spawn", "posix_spawn"),
                  ("os", "posix_spawnp", "posix_spawnp"),
                  ("posix", "posix_spawnp", "posix_spawnp"))  # fmt: skip
        for module, name, original in places:
            found, pair = sys.modules.get(module), self._covers.get(original)
            # If somebody else stands there, that stays.
            if found is not None and pair is not None and getattr(found, name, None) is pair[old]:
                setattr(found, name, pair[new])

    def _note_spawn(self, name: str, begin_ns: int, child: int, first: object) -> None:
        if self.listener is not None:
            self.listener(_HOW[name], begin_ns, child, first)


_seam = _Seam()


class Source:
    """Writes a row for each process that is started."""

    def __init__(self, context: SourceContext) -> None:
        self._emit = context.writer(Spawn)
        self._listener = context.guard(self._write)

    def start(self) -> None:
        _seam.open(self._listener)

    def stop(self) -> None:
        if _seam.listener is self._listener:
            _seam.close()

    def _write(self, how: str, t_ns: int, child: int, first: object) -> None:
        dur_ns = _core.clock_ns() - t_ns
        frame = find_own(sys._getframe(1))
        place: tuple[Any, ...] = (None, None, None)
        if frame is not None:
            code = frame.f_code
            place = getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno
        self._emit(t_ns, dur_ns, child, how, _name_program(first), get_native_id(), *place)


def find_own(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the program's own code; else of a package; else nothing."""
    found: FrameType | None = None
    while frame is not None:
        owner = _owners.get(frame.f_code.co_filename) or _find_owner(frame.f_code.co_filename)
        if owner == _OWN:
            return frame
        if owner == _PACKAGE:
            found = found or frame
        frame = frame.f_back
    return found


def _find_owner(file: str) -> int:
    """Return whose code a file is, and remember it."""
    owner = _OWN
    if file.startswith((_OURS, "<frozen")):
        owner = _PYTHON
    elif any(part in file for part in _PACKAGES):
        owner = _PACKAGE
    elif file.startswith(_LIBRARY):
        owner = _PYTHON
    if len(_owners) < _MOST_FILES:
        _owners[file] = owner
    return owner


def _name_program(first: Any) -> str | None:
    """Return what is started: fork_exec has the arguments first, posix_spawn the file."""
    if isinstance(first, (list, tuple)):
        first = first[0] if first else None
    return None if first is None else os.fsdecode(first)[:_MOST_CHARS]
