"""What a source is given: a way to write rows, and to be called so that it can do no harm."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums of `signal`, slow to make
import os
from collections.abc import Callable

from sonde import _core
from sonde.errors import Unavailable
from sonde.session.writer import SessionWriter
from sonde.tables import name_row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Owner(Protocol):
        """Whoever records: the recorder."""

        session: SessionWriter | None

        def open_table(self, row: type, table: str) -> _core.Writer: ...
        def note(self, source: str, state: str, detail: str | None = None) -> None: ...
        def publish(self) -> None: ...


class SourceContext:
    """What a source is given: a way to write rows and to be called safely."""

    def __init__(self, owner: Owner, name: str) -> None:
        self._owner, self._name = owner, name
        self.failed = False
        self.detail: str | None = None  # what a user should know of a source that is on

    @property
    def session(self) -> SessionWriter:
        """The session that is being written: its folder, settings, texts and control page."""
        assert self._owner.session is not None
        return self._owner.session

    def writer(self, row: type) -> _core.Writer:
        """Return `emit` for rows of this class; made once, called often."""
        return self._owner.open_table(row, name_row(row))

    def tell(self, detail: str | None) -> None:
        """Say what a user should know of this source, which is on, from now on."""
        self.detail = detail
        self._owner.note(self._name, "on", detail)

    def end(self) -> None:
        """Write down that the source is off, unless it has failed: then the reason stays."""
        if not self.failed:
            self._owner.note(self._name, "off")

    def make_part(self, name: str) -> SourceContext:
        """Return a context for a part of the source, which alone is switched off if it fails."""
        return SourceContext(self._owner, name)

    def publish(self) -> None:
        """Make every source write what it has not written yet."""
        self._owner.publish()

    def guard(self, call: Callable[..., object]) -> Callable[..., object]:
        """Return `call`, wrapped so that nothing that goes wrong in it reaches the program."""

        def guarded(*args: object) -> object:
            if self.failed:
                return None
            try:
                return call(*args)
            except Exception as error:  # the one place: a broken source is switched off
                if is_from_signal(error):
                    raise
                self.failed = True
                self._owner.note(self._name, *_name_failure(error))
                return None

        return guarded


def _name_failure(error: Exception) -> tuple[str, str]:
    """Return the state and reason of a source that raised this error."""
    if isinstance(error, Unavailable):
        return "unavailable", str(error)
    return "failed", f"{type(error).__name__}: {error}"


def is_from_signal(error: Exception) -> bool:
    """Say whether a signal handler of the program, which may run inside our code, raised this."""
    handlers = (_signal.getsignal(number) for number in range(1, _signal.NSIG))
    codes = {getattr(handler, "__code__", None) for handler in handlers} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def say(line: str) -> None:
    """One line to the user, who asked for a recording and does not get it."""
    try:
        os.write(2, f"sonde: {line}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass
