"""Requests of Django, Flask, FastAPI, Starlette and WSGI or ASGI, tasks of Celery, calls of Ray.

It is off unless asked for, as it stands in front of one method of each framework and server; Celery
has signals for whoever wants to know."""

from __future__ import annotations

import sys
from _thread import get_native_id

from sonde import _core
from sonde.job.source_context import SourceContext
from sonde.job.sources._covers import Covers, UnderWay
from sonde.job.sources._frameworks import Frameworks
from sonde.job.sources._web_servers import Servers
from sonde.tables.request import Request

ON = False
NEEDS = ()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_CHARS = 200  # of a route
_covers = Covers()


class Source:
    """Writes a row for each request."""

    def __init__(self, context: SourceContext) -> None:
        self.emit = context.writer(Request)
        self._context, self.guard = context, context.guard
        self.write_row = context.guard(self._write, in_child=True)

    def start(self) -> None:
        _covers.give(self, [*Frameworks(_covers).list_covers(), *Servers(_covers).list_covers()])

    def leave(self) -> None:
        """In a forked child: leave everything in place, for the child's own source."""

    def stop(self) -> None:
        _covers.take_away()

    def _write(
        self, under_way: UnderWay, framework: str, describe: Any, request: Any, answer: Any,
        failed: type | None = None,
    ) -> None:  # fmt: skip
        error = failed or sys.exc_info()[0]
        method, route, status, function = describe(request, answer)
        file, first_line = _find_code(function)
        row = (
            under_way.t_ns, _core.clock_ns() - under_way.t_ns, framework, method,
            None if route is None else str(route)[:_MOST_CHARS],
            status if isinstance(status, int) and error is None else None,
            None if error is None else error.__name__, get_native_id(), under_way.others,
            file, first_line,
        )  # fmt: skip
        if self._context.is_inherited():
            self._context.want_in_child()
            _covers.hold(self, row)
        else:
            self.emit(*row)


def _find_code(function: Any) -> tuple[str | None, int | None]:
    """Return file and first line of a function, below its decorators."""
    for _ in range(100):
        below = getattr(function, "__wrapped__", None)
        if below is None:
            break
        function = below
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return (None, None) if code is None else (code.co_filename, code.co_firstlineno)
