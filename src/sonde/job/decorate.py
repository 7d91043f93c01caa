"""Wrap a function in another of the same kind: plain, coroutine, generator or async generator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    Function = Callable[..., Any]

    class Wraps(Protocol):
        """Wraps each kind of function. Each result must be a function of the same kind."""

        def wrap(self, function: Function) -> Function: ...
        def wrap_coroutine(self, function: Function) -> Function: ...
        def wrap_generator(self, function: Function) -> Function: ...
        def wrap_async_generator(self, function: Function) -> Function: ...


# Flags of a function's code, spelled out because importing `inspect` takes 8 ms in the job. A
# generator that types.coroutine has made awaitable has two of them; its caller awaits it.
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80 | 0x100, 0x200


def decorate(function: Any, wraps: Wraps) -> Any:
    """Return `function`, or a static or class method, wrapped according to its kind."""
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorate(function.__func__, wraps))
    flags = _find_flags(function)
    if flags & _ASYNC_GENERATOR:
        wrapper = wraps.wrap_async_generator(function)
    elif flags & _COROUTINE:
        wrapper = wraps.wrap_coroutine(function)
    elif flags & _GENERATOR:
        wrapper = wraps.wrap_generator(function)
    else:
        wrapper = wraps.wrap(function)
    return update_wrapper(wrapper, function)


def can_decorate(function: object) -> bool:
    """Return whether this is a callable, or a static or class method still inside its class."""
    return isinstance(function, (staticmethod, classmethod)) or callable(function)


def _find_flags(function: Any) -> int:
    """Return the flags of a function's code, looking through partials and callable objects."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        method = vars(type(function)).get("__call__")
        code = getattr(method, "__code__", None)
    return int(getattr(code, "co_flags", 0))
