"""Exceptions that nothing in the program catches, and the listeners that are told of them."""

from __future__ import annotations

import sys

from sonde import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, TypeAlias

    Listener: TypeAlias = Callable[[BaseException, TracebackType | None], object]

# Where each hook is known. A console tells by `is` whether the program has a hook of its own: that
# must stay so. `threading` takes its hook from `_thread` when it is imported.
_KNOWN = {
    "sys": (("sys", "excepthook"), ("sys", "__excepthook__")),
    "threading": (
        ("threading", "excepthook"), ("threading", "__excepthook__"), ("_thread", "_excepthook"),
    ),
}  # fmt: skip


class Uncaught:
    """Stands in front of sys.excepthook and threading.excepthook, and always calls them.

    A listener is called in the thread of the exception, before the program's hook; wrap it in
    `context.guard`."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._hooks: dict[str, _core.ChainedHook] = {}
        # By module: the hook of ours that a later hook of the program may still call.
        self._covered: dict[str, _core.ChainedHook] = {}
        self.seen: object = None  # id of the last exception that ended the main thread

    def subscribe(self, listener: Listener) -> None:
        self._listeners = (*self._listeners, listener)
        if len(self._listeners) == 1:
            # An old one, of a program that we were attached to, is not news. Not what is handled
            # just now: it is freed, and the one that ends the program may get its address.
            self.seen = id(_find_old_exception())
            self._cover("sys", self._see)
            self._cover("threading", self._see_thread)

    def unsubscribe(self, listener: Listener) -> None:
        self._listeners = tuple(one for one in self._listeners if one is not listener)
        if not self._listeners:
            self._uncover()

    def is_news(self, error: object) -> bool:
        """Tell whether an exception that Python, or somebody else, calls its last one may have
        ended the main thread: pytest and consoles set it for debuggers, and go on. It has not if
        our hook stands in front and was not called with it, unless it came before our hook did."""
        hook = self._hooks.get("sys")
        return hook is None or sys.excepthook is not hook.function or self.seen in (None, id(error))

    def _cover(self, name: str, listener: Callable[..., object]) -> None:
        hook = self._covered.pop(name, None)
        if hook is None:
            inside, attribute = _find_hook(name)
            hook = _core.ChainedHook(None, inside[attribute])
            _replace(name, hook.previous, hook.function)
        hook.listener = listener
        self._hooks[name] = hook

    def _uncover(self) -> None:
        hooks, self._hooks = self._hooks, {}
        for name, hook in hooks.items():
            hook.listener = None
            inside, attribute = _find_hook(name)
            is_in_front = inside.get(attribute) is hook.function
            _replace(name, hook.function, hook.previous)
            if not is_in_front:
                self._covered[name] = hook  # the program has put its own in front

    def _see(self, _kind: object, error: object, trace: TracebackType | None) -> None:
        # The program may call sys.__excepthook__ to show what it has caught. Python sets these
        # before it calls the hook for what nobody has caught; a hook of the program may call again.
        last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is not last or self.seen == id(error):
            return
        self.seen = id(error)
        self._call_listeners(error, trace)

    def _see_thread(self, args: Any) -> None:
        if args.exc_type is not SystemExit:  # with which a thread may end in an orderly way
            self._call_listeners(args.exc_value, args.exc_traceback)

    def _call_listeners(self, error: object, trace: TracebackType | None) -> None:
        if isinstance(error, BaseException):
            # Without signals: a handler of the program runs before or after us.
            for listener in self._listeners:
                _call_undisturbed(listener, error, trace)


def _call_undisturbed(
    listener: Listener, error: BaseException, trace: TracebackType | None
) -> None:
    _core.undisturbed(lambda: listener(error, trace))


def _find_hook(name: str) -> tuple[dict[str, Any], str]:
    """Return the names of the module that holds a hook now, and the hook's own name there."""
    for module, attribute in _KNOWN[name]:
        inside = getattr(sys.modules.get(module), "__dict__", {})
        # A `threading` that is being imported may not have its own yet.
        if attribute in inside and (module != "threading" or "__excepthook__" in inside):
            return inside, attribute
    raise ImportError(f"{name} has no hook for exceptions")


def _replace(name: str, old: object, new: object) -> None:
    """Put one hook in the place of another, wherever that one is known."""
    for module, attribute in _KNOWN[name]:
        inside = getattr(sys.modules.get(module), "__dict__", {})
        if inside.get(attribute) is old:
            inside[attribute] = new


def _find_old_exception() -> BaseException | None:
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def find_last_exception() -> BaseException | None:
    """Return the exception that is ending the program, or has ended its main thread; None for an
    orderly end."""
    # Python sets the `last` ones before it calls sys.excepthook. Multiprocessing calls us while
    # the exception is still on its way.
    error = sys.exc_info()[1] or _find_old_exception()
    is_over = sys.exc_info()[1] is not None or uncaught.is_news(error)
    return error if is_over and not isinstance(error, SystemExit) else None


uncaught = Uncaught()
