"""Exceptions that nothing in the program catches, and the listeners that are told of them."""

from __future__ import annotations

import sys

from sonde import _core
from sonde.job.import_watch import ImportWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType
    from typing import Any, TypeAlias

    Listener: TypeAlias = Callable[[BaseException, TracebackType | None], object]

_NAMES = ("excepthook", "__excepthook__")


class Uncaught:
    """Stands in front of sys.excepthook and threading.excepthook, and always calls them.

    A listener is called in the thread of the exception, before the program's hook; wrap it in
    `context.guard`."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._hooks: dict[str, _core.ChainedHook] = {}
        # By module: the hook of ours that a later hook of the program may still call.
        self._covered: dict[str, _core.ChainedHook] = {}
        self._watch = ImportWatch(_has_threading, self._cover_threads)
        self.seen: object = None  # id of the last exception that ended the main thread

    def subscribe(self, listener: Listener) -> None:
        self._listeners = (*self._listeners, listener)
        if len(self._listeners) == 1:
            # An old one, of a program that we were attached to, is not news. Not what is handled
            # just now: it is freed, and the one that ends the program may get its address.
            self.seen = id(_find_old_exception())
            self._cover(sys, self._see)
            if _has_threading():
                self._cover_threads()
            else:
                self._watch.start()

    def unsubscribe(self, listener: Listener) -> None:
        self._listeners = tuple(one for one in self._listeners if one is not listener)
        if not self._listeners:
            self._watch.stop()
            self._uncover()

    def is_news(self, error: object) -> bool:
        """Tell whether an exception that Python, or somebody else, calls its last one may have
        ended the main thread: pytest and consoles set it for debuggers, and go on. It has not if
        our hook stands in front and was not called with it, unless it came before our hook did."""
        hook = self._hooks.get("sys")
        return hook is None or sys.excepthook is not hook or self.seen in (None, id(error))

    def _cover_threads(self) -> None:
        self._cover(sys.modules["threading"], self._see_thread)

    def _cover(self, module: ModuleType, listener: Callable[..., object]) -> None:
        name = module.__name__
        hook = self._covered.pop(name, None)
        if hook is None:
            hook = _core.ChainedHook(None, module.excepthook)
            # A console tells by `is` whether the program has a hook of its own: that must stay so.
            for each in _NAMES:
                if module.__dict__.get(each) is hook.previous:
                    setattr(module, each, hook)
        hook.listener = listener
        self._hooks[name] = hook

    def _uncover(self) -> None:
        hooks, self._hooks = self._hooks, {}
        for name, hook in hooks.items():
            hook.listener = None
            module = sys.modules.get(name)
            is_in_front = module is not None and module.__dict__.get("excepthook") is hook
            for each in _NAMES:
                if module is not None and module.__dict__.get(each) is hook:
                    setattr(module, each, hook.previous)
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


def _has_threading() -> bool:
    return "__excepthook__" in getattr(sys.modules.get("threading"), "__dict__", ())


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
