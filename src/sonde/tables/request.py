"""Requests that a web application has answered, and tasks and calls that others asked for."""

from __future__ import annotations

from sonde.session.schema import column, i64, text, u32


class Request:
    """A request to a web application, from the call of the application to its answer; or a task of
    Celery, or a call of an actor of Ray."""

    t_ns: i64 = column("when the application was called", "ns")
    dur_ns: i64 = column("until it had answered; a body that is streamed may follow", "ns")
    framework: text = column(
        "django, flask, starlette (which FastAPI is built on), celery or ray; wsgi or asgi for an "
        "application of none of these, seen where its server calls it"
    )
    method: text | None = column("GET, POST, …; task for Celery, actor for Ray")
    route: text | None = column(
        "pattern of the path, such as /user/{id}; NULL if none matched; name of the task or "
        "method, or of the application (wsgi, asgi)"
    )
    status: i64 | None = column("HTTP status of the answer; NULL if an exception ended it")
    error: text | None = column("type of the exception that the application raised")
    thread: i64 = column("kernel id of the thread that the application was called in")
    others: u32 = column("requests of this process that were under way when it began")
    file: text | None = column("file of the function that answers; NULL if that cannot be told")
    first_line: i64 | None = column("its first line, as in python.frame")


ROWS = (Request,)
