"""Native frames as people read them: without the machinery of Python's calls."""

from __future__ import annotations

from collections.abc import Sequence

from sonde.attach.native_names import INTERPRETER, NativeFrame, is_call, lies_in
from sonde.session.stack_table import StackFrame

_START = (*INTERPRETER, "libc.", "libc-", "ld-", "libpthread")


def pick_frames(frames: Sequence[StackFrame]) -> list[StackFrame]:
    """Return the frames that are worth a line, the innermost first.

    Left out are the interpreter's own functions between two of Python, those that it calls C
    through, and what a program or thread begins with. A stack without Python is returned whole."""
    python = [at for at, frame in enumerate(frames) if not frame.is_native]
    if not python:
        return list(frames)
    inner, between, outer = (
        frames[: python[0]], frames[python[0] : python[-1]], frames[python[-1] + 1 :],
    )  # fmt: skip
    return [
        *_skip_calls(inner),
        *(frame for frame in between if not _lies_in(frame, INTERPRETER)),
        frames[python[-1]],
        *(frame for frame in outer if not _lies_in(frame, _START)),
    ]


def _skip_calls(inner: Sequence[StackFrame]) -> Sequence[StackFrame]:
    while inner and is_call(NativeFrame(inner[-1].func, inner[-1].file)):
        inner = inner[:-1]
    return inner


def is_ours(frames: Sequence[StackFrame]) -> bool:
    """Tell whether a thread is one of those that record the program: it has none of its frames."""
    python = any(not frame.is_native for frame in frames)
    return not python and any("/sonde/_core." in frame.file for frame in frames)


def _lies_in(frame: StackFrame, libraries: tuple[str, ...]) -> bool:
    return frame.is_native and lies_in(frame.file, libraries)
