"""Requests that a web application has answered."""

from __future__ import annotations

from sonde.session.schema import column, i64, text, u32


class Request:
    """A request to a web application, from the call of the application to its answer."""

    t_ns: i64 = column("when the application was called", "ns")
    dur_ns: i64 = column("until it had answered; a body that is streamed may follow", "ns")
    framework: text = column("django, flask or starlette (which FastAPI is built on)")
    method: text | None = column("GET, POST, …")
    route: text | None = column("pattern of the path, such as /user/{id}; NULL if none matched")
    status: i64 | None = column("HTTP status of the answer; NULL if an exception ended it")
    error: text | None = column("type of the exception that the application raised")
    thread: i64 = column("kernel id of the thread that the application was called in")
    others: u32 = column("requests of this process that were under way when it began")


ROWS = (Request,)
