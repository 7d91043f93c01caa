"""What can go wrong in the tool, each with the one line a user sees and its exit code."""

from __future__ import annotations


class Error(Exception):
    """Something the user can act on; the message says what happened, to what, and what to do."""

    exit_code = 1


class NoSession(Error):
    """The target names no recording."""

    exit_code = 3


class Damaged(Error):
    """A session folder that is cut, foreign or damaged."""

    exit_code = 4


class Newer(Error):
    """A session folder written by a newer sonde."""

    exit_code = 4

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was written by a newer sonde; update this one to read it")


class QueryError(Error):
    """SQL that cannot be run, or ran too long."""

    exit_code = 5


class NotAnswering(Error):
    """A live process that did not do what it was asked in time."""

    exit_code = 6


class ConfigError(Error):
    """A setting with an unknown name or a value that does not fit."""

    exit_code = 2


class NotRecording(Error):
    """Recording could not start; the program runs on without it."""


class SchemaError(Error):
    """A row class that cannot become a table."""


class Unavailable(Error):
    """A source that cannot work here; the recording goes on without it."""


class NotProfiled(Error):
    """A run that could not begin, or has no result; the work runs without it."""


class RunActive(NotProfiled):
    """Another run is under way in the same process."""

    exit_code = 7

    def __init__(self, run_id: str, pid: int) -> None:
        self.run_id = run_id
        super().__init__(
            f"{run_id} is under way in process {pid}; `sonde profile stop {run_id}` ends it"
        )


class NotRun(Error):
    """A trace was asked of a profiler that has not run."""
