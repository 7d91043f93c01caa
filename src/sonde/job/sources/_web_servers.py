"""Web servers, where they call an application: there its requests are seen, whatever it is made of.

A request that a known framework answers has its row from there, with its route."""

from __future__ import annotations

from functools import partial

from sonde.job.sources._covers import SERVED, Covers, UnderWay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from sonde.job.sources._covers import Cover

    Described: TypeAlias = tuple[Any, Any, Any, Any]  # method, route, status, function

_MOST_WRAPPERS = 10  # of a server, around an application


class Servers:
    """Stands in front of the methods with which servers call an application."""

    def __init__(self, covers: Covers) -> None:
        self._covers = covers

    def list_covers(self) -> list[Cover]:
        """Return modules, their classes, and what is to be done with each class."""
        handle, describe = "handle_request", _describe_gunicorn
        uvicorn = "uvicorn.protocols.http."
        cover, run_asgi = self._cover_call, partial(self._cover_run, "run_asgi", self._watch_asgi)
        return [
            ("gunicorn.workers.sync", "SyncWorker", partial(cover, handle, describe)),
            ("gunicorn.workers.base_async", "AsyncWorker", partial(cover, handle, describe)),
            ("gunicorn.workers.gthread", "ThreadWorker", partial(cover, handle, describe)),
            ("gunicorn.http.wsgi", "Response", self._cover_response),
            ("waitress.task", "WSGITask", partial(cover, "execute", _describe_waitress)),
            (f"{uvicorn}h11_impl", "RequestResponseCycle", run_asgi),
            (f"{uvicorn}httptools_impl", "RequestResponseCycle", run_asgi),
            ("wsgiref.handlers", "BaseHandler", partial(self._cover_run, "run", self._watch_wsgi)),
            ("gunicorn.asgi.protocol", "ASGIProtocol", self._cover_connection),
            ("hypercorn.app_wrappers", "ASGIWrapper", self._cover_hypercorn_asgi),
            ("hypercorn.app_wrappers", "WSGIWrapper", self._cover_hypercorn_wsgi),
            ("daphne.server", "Server", self._cover_daphne),
        ]

    def _cover_call(self, name: str, describe: Callable[..., Described], kind: Any) -> None:
        """Stand in front of a method that answers one request."""

        def make(before: Any) -> Any:
            def call(worker: Any, *args: Any, **kwargs: Any) -> Any:
                under_way = self._covers.begin(is_served=True)
                try:
                    return before(worker, *args, **kwargs)
                finally:
                    self._end(under_way, "wsgi", partial(describe, worker), args)

            return call

        if name in vars(kind):  # else a version that we do not know
            self._covers.put(kind, name, make)

    def _cover_response(self, kind: Any) -> None:
        """See which status an application of Gunicorn answers with."""

        def make(before: Any) -> Any:
            def start_response(response: Any, *args: Any, **kwargs: Any) -> Any:
                write = before(response, *args, **kwargs)
                under_way = SERVED.get()
                if under_way is not None:
                    under_way.status = getattr(response, "status", None)
                return write

            return start_response

        if "start_response" in vars(kind):
            self._covers.put(kind, "start_response", make)

    def _cover_run(self, name: str, watch: Callable[[Any], Any], kind: Any) -> None:
        """Stand in front of a method that is given the application to run."""

        def make(before: Any) -> Any:
            def run(handler: Any, application: Any) -> Any:
                return before(handler, watch(application))

            return run

        if name in vars(kind):
            self._covers.put(kind, name, make)

    def _watch_wsgi(self, application: Any) -> Any:
        def call(environ: Any, start_response: Any) -> Any:
            under_way = self._covers.begin(is_served=True)

            def tell(status: Any, *args: Any, **kwargs: Any) -> Any:
                under_way.status = status
                return start_response(status, *args, **kwargs)

            try:
                return application(environ, tell)
            finally:
                self._end(under_way, "wsgi", _describe_wsgi, (environ, application))

        return call

    def _cover_connection(self, kind: Any) -> None:
        """Watch the application of each new connection, which keeps it as `app`."""

        def make(before: Any) -> Any:
            def begin(connection: Any, *args: Any, **kwargs: Any) -> None:
                before(connection, *args, **kwargs)
                if "app" in vars(connection):  # else a version that we do not know
                    connection.app = self._watch_asgi(connection.app)

            return begin

        if "__init__" in vars(kind):
            self._covers.put(kind, "__init__", make)

    def _cover_hypercorn_asgi(self, kind: Any) -> None:
        def make(before: Any) -> Any:
            async def call(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
                watched = self._watch_asgi(partial(before, wrapper), wrapper.app)
                return await watched(*args, **kwargs)

            return call

        if "__call__" in vars(kind):
            self._covers.put(kind, "__call__", make)

    def _cover_hypercorn_wsgi(self, kind: Any) -> None:
        def make(before: Any) -> Any:
            def run_app(wrapper: Any, environ: Any, send: Any) -> Any:
                under_way = self._covers.begin(is_served=True)

                def tell(message: Any) -> Any:
                    if message.get("type") == "http.response.start":
                        under_way.status = message.get("status")
                    return send(message)

                try:
                    return before(wrapper, environ, tell)
                finally:
                    self._end(under_way, "wsgi", _describe_wsgi, (environ, wrapper.app))

            return run_app

        if "run_app" in vars(kind):
            self._covers.put(kind, "run_app", make)

    def _cover_daphne(self, kind: Any) -> None:
        """Watch the task that Daphne makes for a request; it inherits what is set around it."""

        def make(before: Any) -> Any:
            def create_application(server: Any, protocol: Any, scope: Any) -> Any:
                if scope.get("type") != "http":
                    return before(server, protocol, scope)
                under_way = self._covers.begin(is_served=True)
                try:
                    return before(server, protocol, scope)
                finally:
                    SERVED.set(None)
                    end = partial(self._end_task, under_way, (scope, server.application))
                    _when_done(server, protocol, end)

            return create_application

        def make_reply(before: Any) -> Any:
            async def handle_reply(server: Any, protocol: Any, message: Any) -> Any:
                under_way = SERVED.get()
                if under_way is not None and message.get("type") == "http.response.start":
                    under_way.status = message.get("status")
                return await before(server, protocol, message)

            return handle_reply

        if {"create_application", "handle_reply"} <= set(vars(kind)):
            self._covers.put(kind, "create_application", make)
            self._covers.put(kind, "handle_reply", make_reply)

    def _end_task(self, under_way: UnderWay, request: Any, task: Any) -> None:
        error = None if task is None or task.cancelled() else task.exception()
        failed = None if error is None else type(error)
        self._end(under_way, "asgi", _describe_asgi, request, failed)

    def _watch_asgi(self, application: Any, named: Any = None) -> Any:
        async def call(scope: Any, receive: Any, send: Any, *rest: Any) -> Any:
            if scope.get("type") != "http":
                return await application(scope, receive, send, *rest)
            under_way = self._covers.begin(is_served=True)

            async def tell(message: Any) -> None:
                if message.get("type") == "http.response.start":
                    under_way.status = message.get("status")
                await send(message)

            try:
                return await application(scope, receive, tell, *rest)
            finally:
                self._end(under_way, "asgi", _describe_asgi, (scope, named or application))

        return call

    def _end(
        self, under_way: UnderWay, framework: str, describe: Any, request: Any,
        failed: type | None = None,
    ) -> None:  # fmt: skip
        SERVED.set(None)
        under_way.end()
        if not under_way.is_told:
            self._covers.note(under_way, framework, describe, request, under_way.status, failed)


def _when_done(server: Any, protocol: Any, end: Callable[[Any], object]) -> None:
    """Have `end` called when Daphne's task for a request is done; at once if there is none."""
    task = getattr(server, "connections", {}).get(protocol, {}).get("application_instance")
    if task is None:
        end(None)
    else:
        task.add_done_callback(end)


def _describe_gunicorn(worker: Any, args: Any, status: Any) -> Described:
    # A worker with threads is given the request first, the others the socket that it came to.
    request = next(one for one in args if hasattr(one, "uri"))
    return request.method, *_name_application(worker.wsgi, status)


def _describe_waitress(task: Any, _args: Any, _status: Any) -> Described:
    application = task.channel.server.application
    return task.request.command, *_name_application(application, task.status)


def _describe_wsgi(request: Any, status: Any) -> Described:
    environ, application = request
    return environ.get("REQUEST_METHOD"), *_name_application(application, status)


def _describe_asgi(request: Any, status: Any) -> Described:
    scope, application = request
    return scope.get("method"), *_name_application(application, status)


def _name_application(application: Any, status: Any) -> tuple[str, int | None, Any]:
    """Return the name that stands for a route, the status as a number, and the function. Paths are
    data of the program's users, and patterns of them only a framework knows."""
    for _ in range(_MOST_WRAPPERS):
        application = _unwrap(application)
    number = int(str(status)[:3]) if status is not None else None
    named = application if hasattr(application, "__qualname__") else type(application)
    function = application if named is application else named.__call__
    return f"{named.__module__}.{named.__qualname__}", number, function


def _unwrap(application: Any) -> Any:
    """Return the application inside of what a server puts around it for the headers of proxies."""
    if type(application).__module__.startswith(("uvicorn.", "hypercorn.")):
        return getattr(application, "app", application)
    if getattr(application, "__module__", "") == "waitress.proxy_headers":
        names = application.__code__.co_freevars
        return application.__closure__[names.index("app")].cell_contents
    return application
