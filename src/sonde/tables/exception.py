"""Exceptions that nothing in the program has caught, and the call of sys.exit that ended it."""

from __future__ import annotations

from sonde.session.schema import column, i64, text, u32, u64


class Exception:
    """An exception that ended the program or one of its threads."""

    t_ns: i64 = column("when", "ns")
    number: u64 = column("number within this process, from 1")
    thread: i64 = column("kernel id of the thread that it ended")
    type: text = column("full name of the exception's class")
    message: text | None = column("what the exception says, shortened to 1,000 characters")
    cause: text | None = column("class and message of the exception that led to this one")
    func: text | None = column("function that raised it")
    file: text | None = column("source file")
    lineno: i64 | None = column("line that raised it")
    missed: u64 = column("those before this one that have no row: an hour has 60 at most")


class ExceptionFrame:
    """A frame of an uncaught exception's traceback."""

    t_ns: i64 = column("when", "ns")
    number: u64 = column("number of the exception, see python.exception")
    depth: u32 = column("position in the stack; 0 is the innermost frame, which raised")
    func: text = column("function")
    file: text = column("source file")
    lineno: i64 = column("line that raised, or called")
    locals: text | None = column("local variables as JSON, if exception.locals is on")


class ExitCall:
    """The last call of sys.exit in the main thread, if it asked for another code than 0."""

    t_ns: i64 = column("when", "ns")
    thread: i64 = column("kernel id of the main thread")
    code: i64 = column("exit code that was asked for: 1 for a text")
    message: text | None = column("text given instead of a code, shortened to 1,000 characters")
    func: text = column("function that called it")
    file: text = column("source file")
    lineno: i64 = column("line of the call")


ROWS = (Exception, ExceptionFrame, ExitCall)
