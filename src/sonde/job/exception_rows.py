"""Write an uncaught exception and its traceback as rows, without running code of the program."""

from __future__ import annotations

from sonde import _core
from sonde.job.source_context import SourceContext
from sonde.job.sources._python_objects import name_type, show
from sonde.session.json_text import dump
from sonde.tables import exception as rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

_MAX_FRAMES, _MAX_LOCALS, _MAX_CHARS = 200, 64, 1000
_PLAIN = (str, int, float, bool, type(None))  # types whose text runs no code of the program


def write_exception(
    context: SourceContext,
    error: BaseException,
    trace: TracebackType | None,
    head: tuple[int, int, int, int],
) -> None:
    """Write one row for the exception and one for each frame; `head` is when, its number, its
    thread, and how many had no row."""
    now_ns, number, thread, missed = head
    frames = list(_list_frames(trace))[:_MAX_FRAMES]
    func, file, line = frames[0][:3] if frames else (None, None, None)
    context.writer(rows.Exception)(
        now_ns, number, thread, name_type(type(error)), read_message(error), _name_cause(error),
        func, file, line, missed,
    )  # fmt: skip
    emit = context.writer(rows.ExceptionFrame)
    wants_locals = bool(context.session.values["exception.locals"])
    for depth, (func, file, line, frame) in enumerate(frames):
        shown = dump(_show_locals(frame)) if wants_locals else None
        emit(now_ns, number, depth, func, file, line, shown)


def _list_frames(trace: TracebackType | None) -> Iterator[tuple[str, str, int, FrameType]]:
    """Yield the frames of a traceback, the innermost first."""
    found = []
    while trace is not None:
        code = trace.tb_frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        found.append((name, code.co_filename, trace.tb_lineno, trace.tb_frame))
        trace = trace.tb_next
    yield from reversed(found)


def _show_locals(frame: FrameType) -> dict[str, str]:
    if frame.f_code.co_name == "<module>":
        return {}
    found = _core.frame_locals(frame)
    return {name: show(value) for name, value in found[:_MAX_LOCALS]}


def read_message(error: BaseException) -> str | None:
    """Return what the exception says. A class with a `__str__` of its own is not asked: its
    arguments are shown instead."""
    kinds = type.__dict__["__mro__"].__get__(type(error))
    teller = next(kind for kind in kinds if "__str__" in type.__dict__["__dict__"].__get__(kind))
    args = BaseException.args.__get__(error)  # type: ignore[attr-defined]
    if teller.__module__ == "builtins" and all(type(one) in _PLAIN for one in args):
        text = teller.__str__(error)
    else:
        text = ", ".join(show(one) for one in args)
    return shorten(text)


def shorten(text: str) -> str | None:
    """Return a text as rows hold it: not too long, and UTF-8; None for an empty one."""
    return text[:_MAX_CHARS].encode("utf-8", "backslashreplace").decode() or None


def _name_cause(error: BaseException) -> str | None:
    cause = error.__cause__
    if cause is None and not error.__suppress_context__:
        cause = error.__context__
    if cause is None:
        return None
    name, message = name_type(type(cause)), read_message(cause)
    return name if message is None else f"{name}: {message}"
