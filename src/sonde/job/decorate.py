"""Wrap a function in one of its own kind: plain, coroutine, generator or async generator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    Function = Callable[..., Any]

    class Wraps(Protocol):
        """How each kind of function is wrapped. Each result must be a function of the same kind."""

        def wrap(self, function: Function) -> Function: ...
        def wrap_coroutine(self, function: Function) -> Function: ...
        def wrap_generator(self, function: Function) -> Function: ...
        def wrap_async_generator(self, function: Function) -> Function: ...


# Flags of a function's code: `inspect` takes 8 ms to import in the job. A generator that
# types.coroutine has made awaitable has two of them: whoever calls it awaits it.
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80 | 0x100, 0x200


def decorate(function: Any, wraps: Wraps) -> Any:
    """Return `function`, or a static or class method, wrapped as its kind wants it."""
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
    """Say whether there is something to call: a function, or a method before it has its class."""
    return isinstance(function, (staticmethod, classmethod)) or callable(function)


def _find_flags(function: Any) -> int:
    """Return the flags of a function's code, behind partials and objects that can be called."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        method = vars(type(function)).get("__call__")
        code = getattr(method, "__code__", None)
    return int(getattr(code, "co_flags", 0))
