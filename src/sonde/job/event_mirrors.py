"""Passes events on to other tools as they happen: loads those that are wanted, and drops them."""

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
        """A tool that is told of events, in the thread of each."""

        def begin(self, domain: str | None, name: str, kind: str, number: int, value: object,
                  /) -> None: ...  # fmt: skip
        def end(self, domain: str | None, name: str, kind: str, number: int, value: object,
                /) -> None: ...  # fmt: skip
        def stop(self) -> None: ...


# What a tool can be told; a mirror has a method for each that its tool has a word for.
WHATS = ("begin", "end", "count", "mark", "pause", "resume")


class Mirrors:
    """The tools that are told of the events of this process; see the setting `event.mirror`."""

    told: Mirrors | None = None  # those of the recording under way, if there are any

    def __init__(self, context: SourceContext) -> None:
        self._context, self._pid = context, os.getpid()
        self._wanted: list[str] = []
        self._on: dict[str, tuple[Mirror, SourceContext]] = {}
        self._calls: list[Callable[..., object]] = []

    def configure(self) -> None:
        """Start or stop telling each tool, as the setting now says."""
        wanted = list_wanted(str(self._context.session.values["event.mirror"]))
        if wanted != self._wanted:
            self._wanted = wanted
            self._match()

    def stop(self) -> None:
        """Stop telling all tools."""
        self._wanted = []
        self._match()

    def pass_on(self, *event: object) -> None:
        """Tell every tool: what, domain, name, kind, number and value."""
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
                    context.tell(context.detail)
        # New ones are told before old ones are let go: no event falls in between.
        dropped = [self._on[name] for name in gone]
        self._on = kept
        self._calls = [context.guard(_make_call(mirror)) for mirror, context in kept.values()]
        # One alone is told without a way round.
        call = self._calls[0] if len(kept) == 1 else self.pass_on
        _core.events_mirror(call if kept else None)
        Mirrors.told = self if kept else None
        # A child of fork has nothing open in the tool: that is its parent's.
        for mirror, context in dropped if os.getpid() == self._pid else ():
            context.guard(mirror.stop)()
            context.end()


def _make_call(mirror: Mirror) -> Callable[..., object]:
    """Return what the core calls in the thread of an event, after recording it."""
    methods = {what: getattr(mirror, what, _ignore) for what in WHATS}

    def call(what: str, *event: object) -> None:
        methods[what](*event)

    return call


def _ignore(*_event: object) -> None:
    """Do nothing: the tool has no such event."""


def pause() -> None:
    """Make the tools that can (ITT) collect nothing until `resume()`."""
    if Mirrors.told is not None:
        Mirrors.told.pass_on("pause")


def resume() -> None:
    """Make the tools collect again."""
    if Mirrors.told is not None:
        Mirrors.told.pass_on("resume")


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
