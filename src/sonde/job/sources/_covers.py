"""Functions of ours in front of those that answer requests: put there once, kept across forks."""

from __future__ import annotations

import sys
from collections import deque
from contextvars import ContextVar
from functools import partial, update_wrapper

from sonde import _core
from sonde.job.import_watch import ImportWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, TypeAlias

    # A module, one of its names, and what is to be done once the module has it.
    Cover: TypeAlias = tuple[str, str, Callable[[Any], object]]

    class RowSource(Protocol):
        """Whoever writes the rows."""

        write_row: Callable[..., object]
        emit: _core.Writer

        def guard(
            self, call: Callable[..., object], *, in_child: bool
        ) -> Callable[..., object]: ...


class InFlight:
    """How many requests of this process are under way."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class UnderWay:
    """A request that is being answered. One that a server hands to a framework is counted once."""

    __slots__ = ("_all", "_is_open", "_is_part", "is_told", "others", "status", "t_ns")
    others: int  # that were under way when it began

    def __init__(self, in_flight: InFlight, *, is_served: bool = False) -> None:
        self._all, self._is_open, self._is_part = in_flight, True, False
        self.is_told, self.status = False, None
        around = None if is_served else SERVED.get(None)
        # What a request has started may go on after it, with a copy of its context.
        if around is not None and around._is_open and around._all is in_flight:
            self._is_part = around.is_told = True
            self.others = around.others
        else:
            self.others = in_flight.count
            in_flight.count += 1
        if is_served:
            SERVED.set(self)
        self.t_ns = _core.clock_ns()

    def end(self) -> None:
        """Stop counting it."""
        self._is_open = False
        if not self._is_part:
            self._all.count -= 1


SERVED: ContextVar[UnderWay | None] = ContextVar("sonde_request", default=None)


class Covers:
    """What stands in front of frameworks and servers. In a forked child all of it stays in place,
    and the source of the child takes over. Rows of the time until then are held for it: a request
    does not wait until a recording has begun."""

    def __init__(self) -> None:
        self._source: RowSource | None = None
        self._forks, self._in_flight = _core.forks(), InFlight()
        self._watches: list[ImportWatch] = []
        self._done: set[tuple[str, str]] = set()
        self._undo: list[Callable[[], object]] = []
        self._held: deque[tuple[int, tuple[object, ...]]] = deque()

    def give(self, source: RowSource, covers: list[Cover]) -> None:
        """Have this source write the rows from now on, and cover what the program has imported."""
        self._source = source
        self._stop_watches()
        for module, name, make in covers:
            if (module, name) not in self._done:
                # Also in a child that has no source yet: its first request begins its recording.
                cover = source.guard(partial(self._cover, module, name, make), in_child=True)
                self._watches.append(ImportWatch(partial(_has_imported, module, name), cover))
        for watch in self._watches:
            watch.start()
            watch.find_spec("")  # the program may have imported it already
        self._write_held()

    def take_away(self) -> None:
        """Leave the program as it was."""
        self._stop_watches()
        self._done.clear()
        while self._undo:
            self._undo.pop()()
        self._source, self._in_flight = None, InFlight()

    def hold(self, inherited: RowSource, row: tuple[object, ...]) -> None:
        """Keep a row of a child until it has a source of its own."""
        self._held.append((_core.forks(), row))
        if self._source is not inherited:  # since a moment ago
            self._write_held()

    def _write_held(self) -> None:
        """Write the rows that were held. Two threads may do so at once: each row is taken once."""
        source = self._source
        while source is not None:
            try:
                forks, row = self._held.popleft()
            except IndexError:
                return
            if forks == _core.forks():  # else it is the parent's
                source.emit(*row)

    def begin(self, *, is_served: bool = False) -> UnderWay:
        """Note that a request begins."""
        if self._forks != _core.forks():  # those of a parent are not ours
            self._forks, self._in_flight = _core.forks(), InFlight()
        return UnderWay(self._in_flight, is_served=is_served)

    def note(self, *request: Any) -> None:
        """Have the row of a request written, which has ended."""
        if self._source is not None:
            self._source.write_row(*request)

    def put(self, kind: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put a function of ours in front of a method."""
        before = vars(kind)[name]
        ours = update_wrapper(make(before), before)  # it says of itself what that says
        setattr(kind, name, ours)

        def undo() -> None:
            if vars(kind).get(name) is ours:  # else somebody stands in front of us
                setattr(kind, name, before)

        self._undo.append(undo)

    def undo_with(self, call: Callable[[], object]) -> None:
        """Have this called when all is taken away."""
        self._undo.append(call)

    def _cover(self, module: str, name: str, make: Callable[[Any], object]) -> None:
        self._done.add((module, name))
        make(getattr(sys.modules[module], name))

    def _stop_watches(self) -> None:
        for watch in self._watches:
            watch.stop()
        self._watches.clear()


def _has_imported(module: str, name: str) -> bool:
    return name in getattr(sys.modules.get(module), "__dict__", ())
