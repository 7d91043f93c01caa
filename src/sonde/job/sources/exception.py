"""Exceptions that nothing in the program catches."""

from __future__ import annotations

from _thread import allocate_lock, get_native_id

from sonde import _core
from sonde.job.source_context import SourceContext
from sonde.job.uncaught import find_last_exception, uncaught

ON = True
NEEDS = ()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_MOST = 60  # rows in an hour: texts are kept for ever, and a server may fail in every request
_HOUR_NS = 3600 * 10**9


class Source:
    """Writes a row per exception, before the program's own hook is called."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._lock = allocate_lock()
        self._number = self._missed = 0
        self._written_ns: list[int] = []  # of the last ones
        self._listener = context.guard(self._record)

    def start(self) -> None:
        uncaught.subscribe(self._listener)

    def stop(self) -> None:
        uncaught.unsubscribe(self._listener)

    def at_exit(self, is_new: bool) -> None:
        """Record what ended the program, if the hook did not see it: the program's own hook may
        have taken its place, and multiprocessing has none. `is_new`: the recording exists only for
        this."""
        error = find_last_exception()
        if error is not None and (is_new or id(error) != uncaught.seen):
            self._record(error, getattr(error, "__traceback__", None))

    def _record(self, error: BaseException, trace: TracebackType | None) -> None:
        now_ns = _core.clock_ns()
        with self._lock:
            if len(self._written_ns) == _MOST and now_ns - self._written_ns[0] < _HOUR_NS:
                self._missed += 1
                return
            self._written_ns = [*self._written_ns[1 - _MOST :], now_ns]
            self._number += 1
            number, missed, self._missed = self._number, self._missed, 0
        from sonde.job.exception_rows import write_exception  # most programs never need it

        write_exception(self._context, error, trace, (now_ns, number, get_native_id(), missed))
