"""Requests of web applications: Django, Flask, FastAPI and Starlette.

It is off unless asked for, as it stands in front of one method of each framework."""

from __future__ import annotations

import sys
from _thread import get_native_id

from sonde import _core
from sonde.job.import_watch import ImportWatch
from sonde.job.source_context import SourceContext
from sonde.tables.request import Request

ON = False
NEEDS = ()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MOST_CHARS = 200  # of a route


class Source:
    """Stands in front of the frameworks that the program has imported, and writes a row for each
    request. Whatever the application returns or raises goes on as it is."""

    def __init__(self, context: SourceContext) -> None:
        self._emit = context.writer(Request)
        self._note = context.guard(self._write)
        self._under_way = 0
        self._undo: list[Callable[[], object]] = []
        self._watches = [
            ImportWatch(_await(module, name), context.guard(self._make_cover(module, name, make)))
            for module, name, make in (
                ("django.core.handlers.base", "BaseHandler", self._cover_django),
                ("flask.app", "Flask", self._cover_flask),
                ("starlette.applications", "Starlette", self._cover_starlette),
            )
        ]

    def start(self) -> None:
        for watch in self._watches:
            watch.start()
            watch.find_spec("")  # the program may have imported it already

    def stop(self) -> None:
        for watch in self._watches:
            watch.stop()
        while self._undo:
            self._undo.pop()()

    def _make_cover(self, module: str, name: str, make: Callable[[Any], object]) -> Any:
        return lambda: make(getattr(sys.modules[module], name))

    def _put(self, kind: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put a function of ours in front of a method."""
        before = vars(kind)[name]
        ours = make(before)
        ours.__name__, ours.__qualname__ = name, getattr(before, "__qualname__", name)
        setattr(kind, name, ours)

        def undo() -> None:
            if vars(kind).get(name) is ours:  # else somebody stands in front of us
                setattr(kind, name, before)

        self._undo.append(undo)

    # ---- frameworks ----------------------------------------------------------------------------

    def _cover_django(self, kind: Any) -> None:
        def plain(before: Any) -> Any:
            def get_response(handler: Any, request: Any) -> Any:
                under_way, answer = _UnderWay(self), None
                try:
                    answer = before(handler, request)
                    return answer
                finally:
                    under_way.end()
                    self._note(under_way, "django", _describe_django, request, answer)

            return get_response

        def asynchronous(before: Any) -> Any:
            async def get_response_async(handler: Any, request: Any) -> Any:
                under_way, answer = _UnderWay(self), None
                try:
                    answer = await before(handler, request)
                    return answer
                finally:
                    under_way.end()
                    self._note(under_way, "django", _describe_django, request, answer)

            return get_response_async

        self._put(kind, "get_response", plain)
        self._put(kind, "get_response_async", asynchronous)

    def _cover_flask(self, kind: Any) -> None:
        def make(before: Any) -> Any:
            def full_dispatch_request(app: Any, *args: Any) -> Any:
                under_way, answer = _UnderWay(self), None
                try:
                    answer = before(app, *args)
                    return answer
                finally:
                    under_way.end()
                    self._note(under_way, "flask", _describe_flask, None, answer)

            return full_dispatch_request

        self._put(kind, "full_dispatch_request", make)

    def _cover_starlette(self, kind: Any) -> None:
        def make(before: Any) -> Any:
            async def call(app: Any, scope: Any, receive: Any, send: Any) -> None:
                if scope.get("type") != "http":
                    await before(app, scope, receive, send)
                    return
                under_way, status = _UnderWay(self), [None]

                async def tell(message: Any) -> None:
                    if message.get("type") == "http.response.start":
                        status[0] = message.get("status")
                    await send(message)

                try:
                    await before(app, scope, receive, tell)
                finally:
                    under_way.end()
                    self._note(under_way, "starlette", _describe_starlette, scope, status[0])

            return call

        self._put(kind, "__call__", make)

    def _write(
        self, under_way: _UnderWay, framework: str, describe: Any, request: Any, answer: Any
    ) -> None:
        error = sys.exc_info()[0]
        method, route, status = describe(request, answer)
        self._emit(
            under_way.t_ns, _core.clock_ns() - under_way.t_ns, framework, method,
            None if route is None else str(route)[:_MOST_CHARS],
            status if isinstance(status, int) and error is None else None,
            None if error is None else error.__name__, get_native_id(), under_way.others,
        )  # fmt: skip


class _UnderWay:
    """A request that is being answered."""

    __slots__ = ("_owner", "others", "t_ns")

    def __init__(self, owner: Source) -> None:
        self._owner, self.others, self.t_ns = owner, owner._under_way, _core.clock_ns()
        owner._under_way += 1

    def end(self) -> None:
        """Stop counting it."""
        self._owner._under_way -= 1


def _await(module: str, name: str) -> Callable[[], bool]:
    return lambda: name in getattr(sys.modules.get(module), "__dict__", ())


def _describe_django(request: Any, answer: Any) -> tuple[Any, Any, Any]:
    match = getattr(request, "resolver_match", None)
    route = None if match is None else f"/{match.route}"
    return request.method, route, getattr(answer, "status_code", None)


def _describe_flask(_request: Any, answer: Any) -> tuple[Any, Any, Any]:
    request = sys.modules["flask"].request
    rule = request.url_rule
    return request.method, None if rule is None else rule.rule, getattr(answer, "status_code", None)


def _describe_starlette(scope: Any, status: Any) -> tuple[Any, Any, Any]:
    route = getattr(scope.get("route"), "path", None)
    if route is None and scope.get("endpoint") is not None:
        route = getattr(scope["endpoint"], "__qualname__", None)
    return scope.get("method"), route, status
