"""Passes events on to other tools as they happen: loads those that are wanted, and drops them."""

from __future__ import annotations

from sonde import _core, config, plugins
from sonde.errors import Unavailable
from sonde.host import Host

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

    def __init__(self, host: Host) -> None:
        self._host = host
        self._wanted: list[str] = []
        self._on: dict[str, tuple[Mirror, Host]] = {}
        self._calls: dict[str, list[Callable[..., object]]] = {}

    def configure(self) -> None:
        """Begin or end to tell each tool, as the setting wants it now."""
        wanted = list_wanted(str(self._host.session.values["event.mirror"]))
        if wanted != self._wanted:
            self._wanted = wanted
            self._match()

    def stop(self) -> None:
        """Tell nobody any more."""
        self._wanted = []
        self._match()

    def pass_on(self, what: str, *event: object) -> None:
        """Tell every tool; `_core` calls it in the thread of the event, after it was recorded."""
        for call in self._calls[what]:
            call(*event)

    def _match(self) -> None:
        gone = [name for name in self._on if name not in self._wanted]
        kept = {name: one for name, one in self._on.items() if name not in gone}
        for name in self._wanted:
            if name not in kept:
                host = self._host.make_part(f"mirror.{name}")
                mirror = host.guard(_load)(name, host)
                if mirror is not None:
                    kept[name] = (mirror, host)  # type: ignore[assignment]
                    host.tell(host.detail)
        # New ones are told before old ones are let go: no event falls in between.
        dropped = [self._on[name] for name in gone]
        self._on = kept
        self._calls = {what: list(self._list_calls(what)) for what in WHATS}
        _core.events_mirror(self.pass_on if kept else None)
        Mirrors.told = self if kept else None
        for mirror, host in dropped:
            host.guard(mirror.stop)()
            host.end()

    def _list_calls(self, what: str) -> list[Callable[..., object]]:
        found = [(getattr(mirror, what, None), host) for mirror, host in self._on.values()]
        return [host.guard(call) for call, host in found if call is not None]


def pause() -> None:
    """Have the tools collect nothing for a while: those that can (ITT)."""
    if Mirrors.told is not None:
        Mirrors.told.pass_on("pause")


def resume() -> None:
    """Have them go on."""
    if Mirrors.told is not None:
        Mirrors.told.pass_on("resume")


def list_wanted(setting: str) -> list[str]:
    """The mirrors that a value of `event.mirror` names."""
    if setting == "auto":
        return config.find_listeners()
    return [name for name in setting.split(",") if name]


def _load(name: str, host: Host) -> Mirror:
    try:
        mirror: Mirror = plugins.load("mirrors", name).Mirror(host)
    except ImportError as error:
        raise Unavailable(f"{error}; pip install 'sonde[{name}]'") from None
    return mirror
