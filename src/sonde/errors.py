"""The errors of the tool: each has a message of one line for the user, and an exit code."""

from __future__ import annotations


class Error(Exception):
    """An error the user can act on: the message says what happened, to what, and what to do."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows of it: the message is for the user, our lines are not."""
        return [f"{type(self).__name__}: {self}"]


class NoSession(Error):
    """The target names no recording."""

    exit_code = 3


class Damaged(Error):
    """A session folder is truncated, damaged or not ours."""

    exit_code = 4


class NotYours(Error):
    """A folder belongs to another user, or others can write to it; sonde does not write there."""


class Newer(Error):
    """A session folder was written by a newer sonde."""

    exit_code = 4

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was written by a newer sonde; update this one to read it")


class QueryError(Error):
    """A query cannot be run, or ran for too long."""

    exit_code = 5


class NotAnswering(Error):
    """A live process did not do what it was asked in time."""

    exit_code = 6


class HostsMissing(Error):
    """Hosts of a cluster did not answer, or refused."""

    exit_code = 9


class ConfigError(Error):
    """A setting has an unknown name or an invalid value."""

    exit_code = 2


class NotRecording(Error):
    """Recording could not start; the program keeps running without it."""


class SchemaError(Error):
    """A row class cannot become a table."""


class Unavailable(Error):
    """A source cannot work here; the recording continues without it."""


class NotProfiled(Error):
    """A run could not begin or has no result; the user's work is not affected."""


class RunActive(NotProfiled):
    """Another run is in progress in the same process."""

    exit_code = 7

    def __init__(self, run_id: str, pid: int) -> None:
        self.run_id = run_id
        super().__init__(
            f"{run_id} is in progress in process {pid}; `sonde profile stop {run_id}` ends it"
        )


class MissingPart(Error, ImportError):
    """A package that only some installations have is not installed: see sonde[tools]."""


# The packages of sonde[tools] and sonde[mcp] that are imported by name, and what each is for.
TOOLS = {
    "duckdb": "SQL",
    "mcp": "the protocol of agents",
    "pyarrow": "tables and archives",
    "rich": "the live screen",
    "textual": "the live screen",
}


def explain_missing(error: ModuleNotFoundError, who: str = "this") -> ImportError:
    """Return what to raise for an import that failed: which extra to install, if that helps."""
    name = error.name or ""
    if name not in TOOLS:
        return error
    extra = "mcp" if name == "mcp" else "tools"
    return MissingPart(
        f"{who} needs {name} ({TOOLS[name]}), which is not installed here: "
        f"pip install 'sonde[{extra}]'"
    )


class NotRun(Error):
    """A trace was requested from a profiler that has not run."""


def is_in_subinterpreter(error: ImportError) -> bool:
    """Return whether the core could not be loaded because this is a subinterpreter."""
    return "sonde._core" in str(error) and "interpreter" in str(error)
