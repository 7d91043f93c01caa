"""Exceptions that nothing in the program catches."""

from __future__ import annotations

import sys
from _thread import allocate_lock, get_native_id

from sonde import _core
from sonde.job.import_watch import ImportWatch
from sonde.job.source_context import SourceContext, find_last_exception

ON = True
NEEDS = ()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import Any

_MOST = 60  # rows in an hour: texts are kept for ever, and a server may fail in every request
_HOUR_NS = 3600 * 10**9

# By module: the hook of ours that a later hook of the program may still call.
_covered: dict[str, _core.ChainedHook] = {}


class Source:
    """Stands in front of sys.excepthook and threading.excepthook, and always calls them."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._hooks: dict[str, _core.ChainedHook] = {}
        self._lock = allocate_lock()
        self._seen: object = None  # id of the last one of the main thread
        self._number = self._missed = 0
        self._written_ns: list[int] = []  # of the last ones
        self._main = context.guard(self._see)
        self._thread = context.guard(self._see_thread)
        self._watch = ImportWatch(_has_threading, context.guard(self._cover_threads))

    def start(self) -> None:
        self._seen = id(find_last_exception())  # an old one, of a program that we were attached to
        self._cover(sys, self._main)
        if _has_threading():
            self._cover_threads()
        else:
            self._watch.start()

    def stop(self) -> None:
        self._watch.stop()
        for name, hook in self._hooks.items():
            hook.listener = None
            module = sys.modules[name]
            if module.__dict__.get("excepthook") is hook:
                module.excepthook = hook.previous  # type: ignore[attr-defined]
            else:
                _covered[name] = hook  # the program has put its own in front
        self._hooks.clear()

    def _cover_threads(self) -> None:
        self._cover(sys.modules["threading"], self._thread)

    def _cover(self, module: ModuleType, listener: Any) -> None:
        name = module.__name__
        hook = _covered.pop(name, None)
        if hook is None:
            hook = _core.ChainedHook(None, module.excepthook)
            module.excepthook = hook  # type: ignore[attr-defined]
        hook.listener = lambda *args: _core.undisturbed(lambda: listener(*args))
        self._hooks[name] = hook

    # ---- exceptions ------------------------------------------------------------------------------

    def _see(self, _kind: object, error: object, trace: TracebackType | None) -> None:
        self._seen = id(error)
        self._record(error, trace, get_native_id())

    def _see_thread(self, args: Any) -> None:
        if args.exc_type is not SystemExit:  # with which a thread may end in an orderly way
            self._record(args.exc_value, args.exc_traceback, get_native_id())

    def at_exit(self, is_new: bool) -> None:
        """Record what ended the program, if the hook did not see it: the program's own hook may
        have taken its place, and multiprocessing has none. `is_new`: the recording exists only for
        this."""
        error = find_last_exception()
        if is_new or id(error) != self._seen:
            self._see(None, error, getattr(error, "__traceback__", None))

    def _record(self, error: object, trace: TracebackType | None, thread: int) -> None:
        if not isinstance(error, BaseException):
            return
        now_ns = _core.clock_ns()
        with self._lock:
            full = len(self._written_ns) == _MOST and now_ns - self._written_ns[0] < _HOUR_NS
            if full:
                self._missed += 1
                return
            self._written_ns = [*self._written_ns[1 - _MOST :], now_ns]
            self._number += 1
            number, missed, self._missed = self._number, self._missed, 0
        from sonde.job.exception_rows import write_exception  # most programs never need it

        write_exception(self._context, error, trace, (now_ns, number, thread, missed))


def _has_threading() -> bool:
    return "__excepthook__" in getattr(sys.modules.get("threading"), "__dict__", ())
