"""The last call of sys.exit, which may have ended the program: what it said, and where."""

from __future__ import annotations

import atexit
import os
import sys
from _thread import get_native_id
from time import thread_time_ns

from sonde import _core
from sonde.job.source_context import SourceContext
from sonde.job.uncaught import find_last_exception
from sonde.tables.exception import ExitCall

ON = True
NEEDS = ()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import TypeAlias

    # When, of which process, code, message, who called and at which line, time of the main thread.
    Call: TypeAlias = tuple[int, int, int, str | None, CodeType, int, int]

# Whoever works for so long afterwards has caught it, as a test of a command does.
_WORK_NS = 2 * 10**9


class Source:
    """Remembers the last call, in front of sys.exit: Python frees the exception, with what it says,
    before it runs exit hooks."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._listener = context.guard(self._note)
        self._hook: _core.ChainedHook | None = None
        self._last: Call | None = None
        self._mark = context.guard(self._note_end)
        self._is_marked = False  # whether that is told of the end
        self._ended_ns: int | None = None  # time of the main thread when exit hooks began

    def start(self) -> None:
        # In C, so that it has no frame: what is raised, and its traceback, are as without us.
        self._hook = _core.ChainedHook(self._listener, sys.exit)
        vars(sys)["exit"] = self._hook.function

    def stop(self) -> None:
        if (hook := self._hook) is None:
            return
        if self._is_marked and self._ended_ns is None:
            atexit.unregister(self._mark)
        hook.listener = None  # all that is left of it if the program has put its own in front
        if vars(sys)["exit"] is hook.function:
            vars(sys)["exit"] = hook.previous

    def at_exit(self, _is_new: bool) -> None:
        """Write the row, if that call may have ended the program."""
        if self._last is None or _core.has_later_filter() or find_last_exception() is not None:
            return
        t_ns, pid, number, message, code, line, worked_ns = self._last
        # What exit hooks do is no sign that the program went on.
        ended_ns = thread_time_ns() if self._ended_ns is None else self._ended_ns
        if pid != os.getpid() or not number or ended_ns - worked_ns > _WORK_NS:
            return
        name = getattr(code, "co_qualname", code.co_name)
        emit = self._context.writer(ExitCall)
        emit(t_ns, pid, number, message, name, code.co_filename, line)

    def _note(self, *args: object) -> None:
        if _core.has_later_filter():
            return  # it may forbid to ask which thread this is, or what time it has used
        if get_native_id() != (pid := os.getpid()) or self._ended_ns is not None:
            return  # it ends that thread, or that exit hook, alone
        own = sys._getframe(1)  # of the guard; behind it is who has called sys.exit
        if (frame := own.f_back) is None or len(args) > 1:
            return  # C code has called it, or it will raise TypeError
        number, message = _read_status(*args)
        self._last = (
            _core.clock_ns(), pid, number, message, frame.f_code, frame.f_lineno, thread_time_ns(),
        )  # fmt: skip
        if not self._is_marked:
            self._is_marked = True
            atexit.register(self._mark)  # the last one registered is called first

    def _note_end(self) -> None:
        if not _core.has_later_filter():
            self._ended_ns = thread_time_ns()


def _read_status(status: object = None) -> tuple[int, str | None]:
    """Return the exit code that this argument leads to, and its text, without running code of the
    program."""
    if status is None:
        return 0, None
    kind = type(status)  # `isinstance` would ask `__class__`, which may be code of the program
    if issubclass(kind, int):
        return int.__pos__(status) & 0xFF, None  # type: ignore[arg-type]
    from sonde.job.exception_rows import read_message, shorten  # most programs never need it
    from sonde.job.sources._python_objects import name_type, show

    if issubclass(kind, BaseException):
        message = read_message(status)  # type: ignore[arg-type]
        name = name_type(kind).removeprefix("builtins.")
        return 1, name if message is None else f"{name}: {message}"
    text = str.__str__(status) if issubclass(kind, str) else show(status)
    return 1, shorten(text)
