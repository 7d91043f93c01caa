"""The names of native functions: which are Python's own machinery, and short ones for people."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

INTERPRETER = ("libpython", "python")
EVAL = "_PyEval_EvalFrameDefault"
_TAIL_CALL = "_TAIL_CALL_"  # how the interpreter's parts begin where it was built with tail calls
# How the functions begin through which the interpreter calls any function of C.
_CALLS = (
    "_PyObject_", "PyObject_", "_PyVectorcall_", "_PyFunction_", "_PyCFunction_", "PyCFunction",
    "_PyEval_", "PyEval_", "cfunction_", "method_vectorcall", "do_call_core", "call_function",
    # since 3.15
    "_Py_VectorCall", "_Py_BuiltinCall", "_Py_CallBuiltin", "_PyCallMethodDescriptor",
)  # fmt: skip
# The parts of a C++ name: in some of them, brackets and spaces are letters like any other.
_PARTS = re.compile(
    r"operator(?:\(\)|<=>|<<=?|>>=?|<=?|>=?|->\*?| \w+)|\(anonymous namespace\)|->|."
)
_ENDING = re.compile(r"(?<=\))(?: const)?(?: volatile)?(?: &&?)?$")  # of what is called like this
_DEPTHS = {"<": 1, "(": 1, ">": -1, ")": -1}


class NativeFrame(NamedTuple):
    """A function of machine code; `library` is empty where no file is mapped."""

    name: str
    library: str


def is_entry(name: str) -> bool:
    """Tell whether this is the function that Python functions begin in."""
    return name.partition(".")[0] == EVAL  # the compiler splits functions into NAME.cold


def is_eval(name: str) -> bool:
    """Tell whether this function runs Python functions."""
    return is_entry(name) or name.startswith(_TAIL_CALL)


def is_call(frame: NativeFrame) -> bool:
    """Tell whether Python calls functions of C through this one. If it was stripped, some of these
    have no name, and what else has none says nothing to anybody."""
    return lies_in(frame.library, INTERPRETER) and (
        frame.name.startswith(_CALLS) or has_no_name(frame)
    )


def has_no_name(frame: NativeFrame) -> bool:
    """Tell whether only the place in its library is known of a function."""
    return frame.name.startswith(os.path.basename(frame.library) + "+")


def lies_in(library: str, names: tuple[str, ...]) -> bool:
    """Tell whether the file of a library has a name that begins with one of these."""
    return os.path.basename(library).startswith(names)


def shorten_name(name: str) -> str:
    """Return the name of a C++ function without its result, its arguments and those of its
    templates; a name of C as it is."""
    short, depth = "", 0
    for part in _PARTS.findall(_ENDING.sub("", name.partition(" [clone")[0])):
        depth += _DEPTHS.get(part, 0)
        if depth == 0 and part == " ":
            short = ""  # that was the type of the result
        elif depth == 0 and part not in _DEPTHS:
            short += part
    return short or name
