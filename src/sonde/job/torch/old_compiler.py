"""Keep torch's older compilers (2.4, say) from compiling sonde's own functions.

They compile every function that is called while a compiled model runs, also those that our core
calls, and with `fullgraph=True` they raise for what cannot be compiled. Newer ones do not."""

from __future__ import annotations

import os
import sys
from types import CodeType, FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_PACKAGE = "sonde"
_FOLDER = os.path.join(os.path.dirname(sys.modules[_PACKAGE].__file__ or ""), "")
_WRITTEN = "<string>"  # the methods that dataclasses write


def leave_out_ours(torch: Any) -> None:
    """Have torch run all of our functions that are loaded now as they are."""
    skip = _find_skip(torch)
    if skip is not None:
        for code in set(_list_code()):
            skip(code)


def wrap_hook(torch: Any, hook: Callable[..., object]) -> Callable[..., object]:
    """Return what to give to torch as a hook: for an older compiler, a function of Python that it
    leaves out in silence. Of a hook in C it warns the user, with our name."""
    if _find_skip(torch) is None:
        return hook

    def call_hook(*args: object) -> object:
        return hook(*args)

    call_hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call_hook


def _find_skip(torch: Any) -> Any:
    dynamo = getattr(getattr(torch, "_C", None), "_dynamo", None)
    return getattr(getattr(dynamo, "eval_frame", None), "skip_code", None)


def _list_code() -> Iterator[CodeType]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _PACKAGE and module is not None:
            for value in list(vars(module).values()):
                if isinstance(value, (FunctionType, type)):
                    yield from _list_code_of(value)


def _list_code_of(value: object) -> Iterator[CodeType]:
    members = list(vars(value).values()) if isinstance(value, type) else [value]
    for member in members:
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if isinstance(function, FunctionType):
            yield from _list_nested(function.__code__)


def _list_nested(code: CodeType) -> Iterator[CodeType]:
    # Our modules also have functions of the standard library, of which some look like ours.
    if code.co_filename.startswith(_FOLDER) or code.co_filename == _WRITTEN:
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _list_nested(constant)
