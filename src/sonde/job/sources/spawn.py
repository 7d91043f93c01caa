"""Processes that the program starts, each with its line."""

from __future__ import annotations

import os
import sys
from _thread import get_native_id

from sonde import _core
from sonde.job.fork import in_parent
from sonde.job.source_context import SourceContext
from sonde.tables.spawn import Spawn

ON = True
NEEDS = ()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

EXEC, POSIX_SPAWN, FORK = "exec", "posix_spawn", "fork"
_LIBRARY = os.path.dirname(os.__file__) + "/"
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + "/"
_PACKAGES = ("/site-packages/", "/dist-packages/")
_OWN, _PACKAGE, _PYTHON = 1, 2, 3
_owners: dict[str, int] = {}  # by file
_MOST_FILES = 1000
_MOST_BYTES = 1 << 16  # of the list of a thread's children
_MOST_CHARS = 200  # of a program's name


class _Seam:
    """Stands in front of the two functions that all of Python's library starts processes with, and
    is told of each fork. There is one for the life of the process: a forked child finds it in
    place."""

    def __init__(self) -> None:
        self.listener: Callable[..., object] | None = None
        self._covers: dict[str, tuple[Any, Any]] = {}  # by how: the function, and ours
        self._inside: set[int] = set()  # threads whose fork is a part of a call that has a row

    def open(self, listener: Callable[..., object]) -> None:
        self.listener = listener
        import _posixsubprocess  # a few functions in C; `subprocess` takes ours when it is imported

        for how, original in ((EXEC, _posixsubprocess.fork_exec), (POSIX_SPAWN, os.posix_spawn)):
            if how not in self._covers:
                self._covers[how] = original, self._cover(original, how)
        self._exchange(0, 1)
        in_parent.listener = self._note_fork

    def close(self) -> None:
        self.listener = in_parent.listener = None
        self._exchange(1, 0)

    def _exchange(self, old: int, new: int) -> None:
        """Put one function of each pair in the place of the other, wherever that stands."""
        places = ((EXEC, "_posixsubprocess", "fork_exec"), (EXEC, "subprocess", "_fork_exec"),
                  (POSIX_SPAWN, "os", "posix_spawn"))  # fmt: skip
        for how, module, name in places:
            found, pair = sys.modules.get(module), self._covers.get(how)
            # If somebody else stands there, that stays.
            if found is not None and pair is not None and getattr(found, name, None) is pair[old]:
                setattr(found, name, pair[new])

    def _cover(self, original: Any, how: str) -> Any:
        def start(*args: Any, **named: Any) -> Any:
            if self.listener is None:
                return original(*args, **named)
            begin_ns, thread = _core.clock_ns(), get_native_id()
            self._inside.add(thread)
            try:
                child = original(*args, **named)
            finally:
                self._inside.discard(thread)
            if self.listener is not None:
                self.listener(how, begin_ns, child, args)
            return child

        start.__name__ = start.__qualname__ = original.__name__
        start.__doc__, start.__module__ = original.__doc__, original.__module__
        return start

    def _note_fork(self) -> None:
        if self.listener is not None and get_native_id() not in self._inside:
            self.listener(FORK, _core.clock_ns(), None, ())


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

    def _write(self, how: str, t_ns: int, child: int | None, args: tuple[Any, ...]) -> None:
        if _core.filter_watch():
            return  # the program has installed a filter, which may forbid to ask for the child
        dur_ns = None if how == FORK else _core.clock_ns() - t_ns
        thread = get_native_id()
        if how == FORK:
            child = _find_newest_child(thread)
        frame = find_own(sys._getframe(1))
        place: tuple[Any, ...] = (None, None, None)
        if frame is not None:
            code = frame.f_code
            place = getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno
        self._emit(t_ns, dur_ns, child, how, _name_program(how, args), thread, *place)


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


def _name_program(how: str, args: tuple[Any, ...]) -> str | None:
    if how == FORK or not args:
        return None
    # fork_exec has the arguments and then the files to try, posix_spawn the file first.
    first = args[0][0] if how == EXEC else args[0]
    return os.fsdecode(first)[:_MOST_CHARS]


def _find_newest_child(thread: int) -> int | None:
    """Return the child that a thread has just forked; None if the kernel does not tell."""
    try:
        file = os.open(f"/proc/self/task/{thread}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.read(file, _MOST_BYTES)
    finally:
        os.close(file)
    words = found.split() if len(found) < _MOST_BYTES else []
    return int(words[-1]) if words else None
