"""The context of a source: how it writes rows, and how it is called so that it does no harm."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the enums of `signal` are slow to create
import sys

from sonde import _core
from sonde.errors import Unavailable
from sonde.session.writer import SessionWriter
from sonde.tables import name_row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from sonde.job.fork import ForkLock

    class Owner(Protocol):
        """The recorder, as far as a source may use it."""

        since_ns: int
        lock: ForkLock

        @property
        def session(self) -> SessionWriter | None: ...
        def open_table(self, row: type, table: str) -> _core.Writer: ...
        def note(self, source: str, state: str, detail: str | None = None) -> None: ...
        def publish(self) -> None: ...
        def leave_if_filtered(self) -> bool: ...

    class Source(Protocol):
        """A plugin that produces rows inside the job."""

        def start(self) -> None: ...
        def stop(self) -> None: ...

        # Optional: `configure`, when a setting has changed; `publish`, to write what was held back;
        # `at_exit`; and `leave` instead of `stop` in a forked child that is to be recorded.


class SourceContext:
    """Given to each source, to write rows and to be called safely."""

    def __init__(self, owner: Owner, name: str) -> None:
        self._owner, self._name = owner, name
        self._forks = _core.forks()
        self.failed = False
        self.detail: str | None = None  # what a user should know about a source that is on
        self.why = ""  # it is on; empty if somebody asked for it

    @property
    def session(self) -> SessionWriter:
        """The session that is being written: its folder, settings, texts and control page."""
        assert self._owner.session is not None
        return self._owner.session

    def may_create_files(self) -> bool:
        """Tell whether no filter of system calls has ended the recording."""
        return not self._owner.leave_if_filtered() and self._owner.session is not None

    @property
    def since_ns(self) -> int:
        """In a forked child whose session begins: when it was forked; else 0."""
        return self._owner.since_ns

    def writer(self, row: type) -> _core.Writer:
        """Return the writer of rows of this class: create it once, call it often."""
        return self._owner.open_table(row, name_row(row))

    def report(self, detail: str | None) -> None:
        """Record what a user should now know about this source, which is on."""
        self.detail = detail
        self._owner.note(self._name, "on", detail)

    def end(self) -> None:
        """Record that the source is off, unless it has failed: then the reason stays."""
        if not self.failed:
            self._owner.note(self._name, "off")

    def make_part(self, name: str) -> SourceContext:
        """Return a context for a part of the source that is switched off alone if it fails."""
        return SourceContext(self._owner, name)

    def is_inherited(self) -> bool:
        """Tell whether this is a forked child whose own recording has not begun."""
        return self._forks != _core.forks()

    def want_in_child(self) -> None:
        """In a forked child that is not recorded yet: have its recording begin before it ends."""
        self._owner.lock.want()

    def publish(self) -> None:
        """Have every source write what it has not written yet."""
        self._owner.publish()

    def guard(
        self, call: Callable[..., object], *, in_child: bool = False
    ) -> Callable[..., object]:
        """Return `call` wrapped so that no failure in it reaches the program. In a forked child
        it does nothing, unless `in_child`: the parent's sources are in place there until the
        child's own session begins."""

        def guarded(*args: object) -> object:
            if self.failed or (self._forks != _core.forks() and not in_child):
                return None
            try:
                return call(*args)
            except Exception as error:  # the only one in the job: a broken source is switched off
                if is_from_signal(error):
                    raise
                self.failed = True
                self._owner.note(self._name, *_name_failure(error))
                return None

        return guarded


def has_gil() -> bool:
    """Return whether this Python has a GIL that is on; once on, it stays on."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def _name_failure(error: Exception) -> tuple[str, str]:
    """Return the state and reason of a source that raised this error."""
    if isinstance(error, Unavailable):
        return "unavailable", str(error)
    if isinstance(error, _core.Damaged):
        # We wrote it, so it was lost since: btrfs promises room that it does not have.
        return (
            "failed",
            f"the disk is full, or somebody has changed our files ({error})",
        )
    return "failed", f"{type(error).__name__}: {error}"


def is_from_signal(error: Exception) -> bool:
    """Return whether a signal handler of the program raised this: one may run inside our code."""
    handlers = (_signal.getsignal(number) for number in range(1, _signal.NSIG))
    codes = {getattr(handler, "__code__", None) for handler in handlers} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False
