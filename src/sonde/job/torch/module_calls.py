"""See calls of modules: by nn.Module's `__call__`, and by that of classes with one of their own."""

from __future__ import annotations

from types import FunctionType

from sonde import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_HOOK = "__init_subclass__"


class ModuleCalls:
    """Has the core see every function by which modules are called, also those of classes to come.

    Classes and functions stay the same objects; only how CPython calls these functions changes."""

    def __init__(self, module: Any, guard: Callable[..., Any]) -> None:
        self._module = module
        self._meet = guard(self.meet)
        self._before: Any = None  # a hook of somebody else for new classes
        self._hook: Any = None
        self._seen: object = None  # the `__call__` of nn.Module

    def start(self) -> None:
        self.meet_again()
        for kind in _list_classes(self._module):
            self.meet(kind)
        self._before = vars(self._module).get(_HOOK)
        self._hook = classmethod(self._make_hook())
        setattr(self._module, _HOOK, self._hook)

    def stop(self) -> None:
        # If somebody has wrapped our hook, it stays in place and only passes calls on.
        if self._hook is not None and vars(self._module).get(_HOOK) is self._hook:
            if self._before is None:
                delattr(self._module, _HOOK)
            else:
                setattr(self._module, _HOOK, self._before)
        self._hook = None
        for kind in (self._module, *_list_classes(self._module)):
            _core.torch_leave_calls(_find_call(kind))

    def meet(self, kind: Any) -> None:
        """See calls of modules of this class."""
        function = _find_call(kind)
        if type(function) is FunctionType:  # another kind of callable cannot be seen
            _core.torch_see_calls(self._module, function)

    def meet_again(self) -> None:
        """See calls through what somebody has put in place of nn.Module's `__call__`."""
        # A program may be compiling us here, with its optimizer, and the core cannot be compiled.
        if vars(self._module).get("__call__") is not self._seen:
            self._seen = vars(self._module).get("__call__")
            self.meet(self._module)

    def _make_hook(self) -> Callable[..., None]:
        def meet_new(kind: Any, **named: Any) -> None:
            if self._before is not None:
                self._before.__get__(None, kind)(**named)
            else:
                super(self._module, kind).__init_subclass__(**named)
            if self._hook is not None:
                self._meet(kind)

        return meet_new


def _find_call(kind: Any) -> object:
    """Return what is called for modules of a class; it may come from a class that is no module."""
    for one in type.__dict__["__mro__"].__get__(kind):
        found = vars(one).get("__call__")
        if found is not None:
            return found
    return None


def _list_classes(root: Any) -> Iterator[Any]:
    """Yield all classes below this one; one with several parents comes several times."""
    left = [root]
    while left:
        below = type.__subclasses__(left.pop())
        yield from below
        left += below
