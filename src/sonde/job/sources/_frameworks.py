"""Frameworks, where they answer a request or run a task: there its route or name is known."""

from __future__ import annotations

import sys
from functools import partial

from sonde.job.sources._covers import Covers, UnderWay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sonde.job.sources._covers import Cover


class Frameworks:
    """Stands in front of one method of each framework; Celery has signals for whoever wants to
    know. Whatever the application returns or raises goes on as it is."""

    def __init__(self, covers: Covers) -> None:
        self._covers = covers
        self._tasks: dict[Any, UnderWay] = {}  # of Celery, by id

    def list_covers(self) -> list[Cover]:
        """Return modules, their classes, and what is to be done with each class."""
        return [
            ("django.core.handlers.base", "BaseHandler", self._cover_django),
            ("flask.app", "Flask", self._cover_flask),
            ("starlette.applications", "Starlette", self._cover_starlette),
            ("celery.signals", "task_postrun", self._hear_celery),
            ("ray._private.function_manager", "FunctionActorManager", self._cover_ray),
        ]

    def _cover_django(self, kind: Any) -> None:
        def plain(before: Any) -> Any:
            def get_response(handler: Any, request: Any) -> Any:
                under_way, answer = self._covers.begin(), None
                try:
                    answer = before(handler, request)
                    return answer
                finally:
                    under_way.end()
                    self._covers.note(under_way, "django", _describe_django, request, answer)

            return get_response

        def asynchronous(before: Any) -> Any:
            async def get_response_async(handler: Any, request: Any) -> Any:
                under_way, answer = self._covers.begin(), None
                try:
                    answer = await before(handler, request)
                    return answer
                finally:
                    under_way.end()
                    self._covers.note(under_way, "django", _describe_django, request, answer)

            return get_response_async

        self._covers.put(kind, "get_response", plain)
        self._covers.put(kind, "get_response_async", asynchronous)

    def _cover_flask(self, kind: Any) -> None:
        def make(before: Any) -> Any:
            def full_dispatch_request(app: Any, *args: Any) -> Any:
                under_way, answer = self._covers.begin(), None
                try:
                    answer = before(app, *args)
                    return answer
                finally:
                    under_way.end()
                    self._covers.note(under_way, "flask", _describe_flask, None, answer)

            return full_dispatch_request

        self._covers.put(kind, "full_dispatch_request", make)

    def _cover_starlette(self, kind: Any) -> None:
        def make(before: Any) -> Any:
            async def call(app: Any, scope: Any, receive: Any, send: Any) -> None:
                if scope.get("type") != "http":
                    await before(app, scope, receive, send)
                    return
                under_way, status = self._covers.begin(), [None]

                async def tell(message: Any) -> None:
                    if message.get("type") == "http.response.start":
                        status[0] = message.get("status")
                    await send(message)

                try:
                    await before(app, scope, receive, tell)
                finally:
                    under_way.end()
                    self._covers.note(under_way, "starlette", _describe_starlette, scope, status[0])

            return call

        self._covers.put(kind, "__call__", make)

    def _hear_celery(self, postrun: Any) -> None:
        prerun = sys.modules["celery.signals"].task_prerun

        def begin(task_id: Any = None, **_: object) -> None:
            self._tasks[task_id] = self._covers.begin()

        def end(
            task_id: Any = None,
            task: Any = None,
            retval: Any = None,
            state: Any = None,
            **_: object,
        ) -> None:
            if (under_way := self._tasks.pop(task_id, None)) is not None:
                under_way.end()
                failed = type(retval) if state == "FAILURE" else None
                self._covers.note(under_way, "celery", _describe_celery, task, None, failed)

        for signal, ours in ((prerun, begin), (postrun, end)):
            signal.connect(ours, weak=False)
            self._covers.undo_with(partial(signal.disconnect, ours))

    def _cover_ray(self, kind: Any) -> None:
        def make(before: Any) -> Any:
            def _make_actor_method_executor(manager: Any, name: str, method: Any) -> Any:
                execute = before(manager, name, method)
                is_rays = getattr(method, "__module__", "").startswith("ray.")
                return execute if is_rays else self._time_call(execute, method)

            return _make_actor_method_executor

        self._covers.put(kind, "_make_actor_method_executor", make)

    def _time_call(self, execute: Any, method: Any) -> Any:
        """Return what Ray calls for a method of an actor, with a row for each call of it."""

        async def finish(under_way: UnderWay, answer: Any) -> Any:
            try:
                return await answer
            finally:
                under_way.end()
                self._covers.note(under_way, "ray", _describe_ray, method, None)

        def executor(*args: Any, **kwargs: Any) -> Any:
            under_way, is_later = self._covers.begin(), False
            try:
                answer = execute(*args, **kwargs)
                is_later = type(answer).__name__ == "coroutine"
                return finish(under_way, answer) if is_later else answer
            finally:
                if not is_later:
                    under_way.end()
                    self._covers.note(under_way, "ray", _describe_ray, method, None)

        vars(executor).update(vars(execute))  # Ray reads its own marks there
        return executor


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
