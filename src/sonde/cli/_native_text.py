"""Native frames as people read them: without the machinery of Python's calls, with short names."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from sonde.session.stack_table import StackFrame

_INTERPRETER = ("libpython", "python")
_START = (*_INTERPRETER, "libc.", "libc-", "ld-", "libpthread")
# How the functions begin through which the interpreter calls any function of C.
_CALLS = (
    "_PyObject_", "PyObject_", "_PyVectorcall_", "_PyFunction_", "_PyCFunction_", "PyCFunction",
    "_PyEval_", "PyEval_", "cfunction_", "method_vectorcall", "do_call_core", "call_function",
)  # fmt: skip
# The parts of a C++ name: in some of them, brackets and spaces are letters like any other.
_PARTS = re.compile(
    r"operator(?:\(\)|<=>|<<=?|>>=?|<=?|>=?|->\*?| \w+)|\(anonymous namespace\)|->|."
)
_DEPTHS = {"<": 1, "(": 1, ">": -1, ")": -1}


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
    while inner and _lies_in(inner[-1], _INTERPRETER) and inner[-1].func.startswith(_CALLS):
        inner = inner[:-1]
    return [
        *inner,
        *(frame for frame in between if not _lies_in(frame, _INTERPRETER)),
        frames[python[-1]],
        *(frame for frame in outer if not _lies_in(frame, _START)),
    ]


def _lies_in(frame: StackFrame, libraries: tuple[str, ...]) -> bool:
    return frame.is_native and os.path.basename(frame.file).startswith(libraries)


def shorten_name(name: str) -> str:
    """Return the name of a C++ function without its result, its arguments and those of its
    templates; a name of C as it is."""
    short, depth = "", 0
    for part in _PARTS.findall(name.partition(" [clone")[0].removesuffix(" const")):
        depth += _DEPTHS.get(part, 0)
        if depth == 0 and part == " ":
            short = ""  # that was the type of the result
        elif depth == 0 and part not in _DEPTHS:
            short += part
    return short or name
