"""Domain, Task, Frame, Event, Counter, Marker and scope.

Like those of `sonde.span`, regions are context managers and decorators, may be started again before
they stop, in any thread, and follow asyncio tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sonde.errors import is_in_subinterpreter

try:
    from sonde import _core
except ImportError as error:
    if not is_in_subinterpreter(error):
        raise
    from sonde.job.subinterpreter import load_core

    _core = load_core()  # it has all that this module uses

_NO_SCOPE = "<unk>:"
_scope: ContextVar[str] = ContextVar("sonde_profiler_scope", default=_NO_SCOPE)


class Domain:
    """A group of tasks, frames, counters and markers: the `cat` of a trace."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Domain({self.name!r})"

    def new_task(self, name: str) -> Task:
        """Return a task of this domain."""
        return Task(self, name)

    def new_frame(self, name: str) -> Frame:
        """Return a frame of this domain."""
        return Frame(self, name)

    def new_counter(self, name: str, value: float | None = None) -> Counter:
        """Return a counter of this domain."""
        return Counter(self, name, value)

    def new_marker(self, name: str) -> Marker:
        """Return a marker of this domain."""
        return Marker(self, name)


def _name(domain: Domain | None) -> str | None:
    """Return the name of a domain; without a domain there is none."""
    return None if domain is None else str(domain)


class Task(_core.Region):
    """A region whose passes are added up in the statistics."""

    def __new__(cls, domain: Domain | None, name: str) -> Task:
        return super().__new__(cls, name, _name(domain), "task")

    def __str__(self) -> str:
        return self.name


class Frame(_core.Region):
    """A region whose passes each have a number of their own."""

    def __new__(cls, domain: Domain | None, name: str) -> Frame:
        return super().__new__(cls, name, _name(domain), "frame")

    def __str__(self) -> str:
        return self.name


class Event(_core.Region):
    """A region without a domain."""

    def __new__(cls, name: str) -> Event:
        return super().__new__(cls, name, None, "event")

    def __str__(self) -> str:
        return self.name


class Counter(_core.Count):
    """A value over time: an integer of any size, or a fraction; it may be negative."""

    def __new__(cls, domain: Domain | None, name: str, value: float | None = None) -> Counter:
        made = super().__new__(cls, name, _name(domain))
        if value is not None:
            made.set_value(value)
        return made

    def __str__(self) -> str:
        return self.name


class Marker(_core.Mark):
    """A moment, marked with `mark()`."""

    def __new__(cls, domain: Domain | None, name: str) -> Marker:
        return super().__new__(cls, name, _name(domain))

    def __str__(self) -> str:
        return self.name


@contextmanager
def scope(name: str = _NO_SCOPE, append_mode: bool = True) -> Iterator[str]:
    """Enter a region for what happens in it, and yield its full name, such as `outer:inner:`.

    Everything recorded in it, in this thread or asyncio task, appears below it. It renames nothing:
    all passes of a task are one statistic, whatever scope they are in."""
    full = name if name.endswith(":") else f"{name}:"
    outer = _scope.get()
    if append_mode and outer != _NO_SCOPE:
        full = outer + full
    token = _scope.set(full)
    try:
        with _core.Region(full.rstrip(":"), "scope"):
            yield full
    finally:
        _scope.reset(token)
