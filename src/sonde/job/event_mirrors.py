"""Pass events on to other tools as they happen; load and unload the mirrors of these tools."""

from __future__ import annotations

import os

from sonde import _core, environ, plugins
from sonde.errors import Unavailable
from sonde.job.source_context import SourceContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Mirror(Protocol):
        """Passes events on to one tool, in the thread where each event happens."""

        def begin(self, domain: str | None, name: str, kind: str, number: int, value: object,
                  /) -> None: ...  # fmt: skip
        def end(self, domain: str | None, name: str, kind: str, number: int, value: object,
                /) -> None: ...  # fmt: skip
        def stop(self) -> None: ...


# The calls a mirror can take; it has a method for each one that its tool supports.
CALLS = ("begin", "end", "count", "mark", "pause", "resume")


class Mirrors:
    """The mirrors that receive the events of this process; see the setting `event.mirror`."""

    current: Mirrors | None = None  # those of the current recording, if it has any
    # Ours: it gets every event as a mirror does, and is told by `listen`.
    listener: Callable[..., object] | None = None
    _connected: Mirrors | None = None

    def __init__(self, context: SourceContext) -> None:
        self._context, self._pid = context, os.getpid()
        self._wanted: list[str] = []
        self._on: dict[str, tuple[Mirror, SourceContext]] = {}
        self._calls: list[Callable[..., object]] = []
        Mirrors._connected = self

    def configure(self) -> None:
        """Start and stop mirrors to match the setting."""
        wanted = list_wanted(str(self._context.session.values["event.mirror"]))
        if wanted != self._wanted:
            self._wanted = wanted
            self._match()

    def stop(self) -> None:
        """Stop all mirrors."""
        self._wanted = []
        self._match()
        if Mirrors._connected is self:
            Mirrors._connected = None
        _core.events_mirror(None)

    def pass_on(self, *event: object) -> None:
        """Pass an event to every mirror: call, domain, name, kind, number and value."""
        for call in self._calls:
            call(*event)

    def _match(self) -> None:
        gone = [name for name in self._on if name not in self._wanted]
        kept = {name: one for name, one in self._on.items() if name not in gone}
        for name in self._wanted:
            if name not in kept:
                context = self._context.make_part(f"mirror.{name}")
                mirror = context.guard(_load)(name, context)
                if mirror is not None:
                    kept[name] = (mirror, context)  # type: ignore[assignment]
                    context.report(context.detail)
        # New mirrors are connected before old ones are stopped, so that no event is missed.
        dropped = [self._on[name] for name in gone]
        self._on = kept
        self._calls = [context.guard(_make_call(mirror)) for mirror, context in kept.values()]
        self._connect()
        Mirrors.current = self if kept else None
        # In a forked child, what is open in the tool belongs to the parent.
        for mirror, context in dropped if os.getpid() == self._pid else ():
            context.guard(mirror.stop)()
            context.end()

    def _connect(self) -> None:
        calls = [*self._calls] if Mirrors.listener is None else [Mirrors.listener, *self._calls]

        def pass_on(*event: object) -> None:
            for call in calls:
                call(*event)

        # A single one is called directly, without the loop.
        _core.events_mirror(pass_on if len(calls) > 1 else calls[0] if calls else None)

    @classmethod
    def listen(cls, call: Callable[..., object] | None) -> None:
        """Have `call` told of every event from now on, or nobody; it must not raise."""
        Mirrors.listener = call
        if cls._connected is not None:
            cls._connected._connect()


def _make_call(mirror: Mirror) -> Callable[..., object]:
    """Return the function that the core calls in the thread of an event, after recording it."""
    methods = {name: getattr(mirror, name, _ignore) for name in CALLS}

    def call(name: str, *event: object) -> None:
        methods[name](*event)

    return call


def _ignore(*_event: object) -> None:
    """Do nothing: the tool has no such event."""


def pause() -> None:
    """Pause the tools that support it (ITT) until `resume()`."""
    if Mirrors.current is not None:
        Mirrors.current.pass_on("pause")


def resume() -> None:
    """Make the tools collect again."""
    if Mirrors.current is not None:
        Mirrors.current.pass_on("resume")


def list_wanted(setting: str) -> list[str]:
    """Return the mirrors that a value of `event.mirror` names."""
    if setting == "auto":
        return environ.find_listeners()
    return [name for name in setting.split(",") if name]


def _load(name: str, context: SourceContext) -> Mirror:
    try:
        mirror: Mirror = plugins.load("job.mirrors", name).Mirror(context)
    except ImportError as error:
        raise Unavailable(f"{error}; pip install 'sonde[{name}]'") from None
    return mirror
