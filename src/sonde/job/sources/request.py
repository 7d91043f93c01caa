"""Requests of Django, Flask, FastAPI, Starlette and WSGI or ASGI, tasks of Celery, calls of Ray.

It is off unless asked for, as it stands in front of one method of each framework and server; Celery
has signals for whoever wants to know."""

from __future__ import annotations

import sys
from _thread import get_native_id
from functools import partial

from sonde import _core
from sonde.job.import_watch import ImportWatch
from sonde.job.source_context import SourceContext
from sonde.job.sources._web_servers import InFlight, Servers, UnderWay
from sonde.tables.request import Request

ON = False
NEEDS = ()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MOST_CHARS = 200  # of a route
# A forked child begins with the source of its parent and gets one of its own, within 0.1 s: what is
# under way then begins with the one and ends with the other.
_running: list[Source] = []
_tasks: dict[Any, UnderWay] = {}  # of Celery, by id


class Source:
    """Stands in front of the frameworks that the program has imported, and writes a row for each
    request. Whatever the application returns or raises goes on as it is."""

    def __init__(self, context: SourceContext) -> None:
        self._emit = context.writer(Request)
        self._write_row = context.guard(self._write)
        self._in_flight = InFlight()
        self._undo: list[Callable[[], object]] = []
        self._watches = [
            ImportWatch(_await(module, name), context.guard(self._make_cover(module, name, make)))
            for module, name, make in (
                ("django.core.handlers.base", "BaseHandler", self._cover_django),
                ("flask.app", "Flask", self._cover_flask),
                ("starlette.applications", "Starlette", self._cover_starlette),
                ("celery.signals", "task_postrun", self._hear_celery),
                ("ray._private.function_manager", "FunctionActorManager", self._cover_ray),
                *Servers(self._put, self._note, self._in_flight).list_covers(),
            )
        ]

    def start(self) -> None:
        _running[:] = [self]
        for watch in self._watches:
            watch.start()
            watch.find_spec("")  # the program may have imported it already

    def stop(self) -> None:
        for watch in self._watches:
            watch.stop()
        while self._undo:
            self._undo.pop()()
        if _running == [self]:
            _running.clear()

    def _note(self, *request: Any) -> None:
        for source in _running or [self]:
            source._write_row(*request)

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
                under_way, answer = UnderWay(self._in_flight), None
                try:
                    answer = before(handler, request)
                    return answer
                finally:
                    under_way.end()
                    self._note(under_way, "django", _describe_django, request, answer)

            return get_response

        def asynchronous(before: Any) -> Any:
            async def get_response_async(handler: Any, request: Any) -> Any:
                under_way, answer = UnderWay(self._in_flight), None
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
                under_way, answer = UnderWay(self._in_flight), None
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
                under_way, status = UnderWay(self._in_flight), [None]

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

    def _hear_celery(self, postrun: Any) -> None:
        prerun = sys.modules["celery.signals"].task_prerun

        def begin(task_id: Any = None, **_: object) -> None:
            _tasks[task_id] = UnderWay(self._in_flight)

        def end(
            task_id: Any = None,
            task: Any = None,
            retval: Any = None,
            state: Any = None,
            **_: object,
        ) -> None:
            if (under_way := _tasks.pop(task_id, None)) is not None:
                under_way.end()
                failed = type(retval) if state == "FAILURE" else None
                self._note(under_way, "celery", _describe_celery, task, None, failed)

        for signal, ours in ((prerun, begin), (postrun, end)):
            signal.connect(ours, weak=False)
            self._undo.append(partial(signal.disconnect, ours))

    def _cover_ray(self, kind: Any) -> None:
        def make(before: Any) -> Any:
            def _make_actor_method_executor(manager: Any, name: str, method: Any) -> Any:
                execute = before(manager, name, method)
                is_rays = getattr(method, "__module__", "").startswith("ray.")
                return execute if is_rays else self._time_call(execute, method)

            return _make_actor_method_executor

        self._put(kind, "_make_actor_method_executor", make)

    def _time_call(self, execute: Any, method: Any) -> Any:
        """Return what Ray calls for a method of an actor, with a row for each call of it."""

        async def finish(under_way: UnderWay, answer: Any) -> Any:
            try:
                return await answer
            finally:
                under_way.end()
                self._note(under_way, "ray", _describe_ray, method, None)

        def executor(*args: Any, **kwargs: Any) -> Any:
            under_way, is_later = UnderWay(self._in_flight), False
            try:
                answer = execute(*args, **kwargs)
                is_later = type(answer).__name__ == "coroutine"
                return finish(under_way, answer) if is_later else answer
            finally:
                if not is_later:
                    under_way.end()
                    self._note(under_way, "ray", _describe_ray, method, None)

        vars(executor).update(vars(execute))  # Ray reads its own marks there
        return executor

    def _write(
        self, under_way: UnderWay, framework: str, describe: Any, request: Any, answer: Any,
        failed: type | None = None,
    ) -> None:  # fmt: skip
        error = failed or sys.exc_info()[0]
        method, route, status, function = describe(request, answer)
        file, first_line = _find_code(function)
        self._emit(
            under_way.t_ns, _core.clock_ns() - under_way.t_ns, framework, method,
            None if route is None else str(route)[:_MOST_CHARS],
            status if isinstance(status, int) and error is None else None,
            None if error is None else error.__name__, get_native_id(), under_way.others,
            file, first_line,
        )  # fmt: skip


def _await(module: str, name: str) -> Callable[[], bool]:
    return lambda: name in getattr(sys.modules.get(module), "__dict__", ())


def _find_code(function: Any) -> tuple[str | None, int | None]:
    """Return file and first line of a function, below its decorators."""
    for _ in range(100):
        below = getattr(function, "__wrapped__", None)
        if below is None:
            break
        function = below
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return (None, None) if code is None else (code.co_filename, code.co_firstlineno)


def _describe_django(request: Any, answer: Any) -> tuple[Any, Any, Any, Any]:
    match = getattr(request, "resolver_match", None)
    route = None if match is None else f"/{match.route}"
    function = getattr(match, "func", None)
    return request.method, route, getattr(answer, "status_code", None), function


def _describe_flask(_request: Any, answer: Any) -> tuple[Any, Any, Any, Any]:
    flask = sys.modules["flask"]
    rule = flask.request.url_rule
    status, method = getattr(answer, "status_code", None), flask.request.method
    if rule is None:
        return method, None, status, None
    return method, rule.rule, status, flask.current_app.view_functions.get(rule.endpoint)


def _describe_starlette(scope: Any, status: Any) -> tuple[Any, Any, Any, Any]:
    route, function = getattr(scope.get("route"), "path", None), scope.get("endpoint")
    if route is None and function is not None:
        route = getattr(function, "__qualname__", None)
    return scope.get("method"), route, status, function


def _describe_celery(task: Any, _answer: Any) -> tuple[Any, Any, Any, Any]:
    return "task", task.name, None, task.run


def _describe_ray(method: Any, _answer: Any) -> tuple[Any, Any, Any, Any]:
    return "actor", getattr(method, "__qualname__", None), None, method
