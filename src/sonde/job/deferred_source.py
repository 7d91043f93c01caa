"""A source that begins when torch is there: until then nothing of it is loaded or made."""

from __future__ import annotations

import sys

from sonde import plugins
from sonde.job.import_watch import Arrival
from sonde.job.source_context import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# How the help of such a source ends, before it may say that it is off until asked.
_LATE = "(with torch"
WAITS = "waits until the program imports torch"


def is_late(name: str) -> bool:
    """Is it a source that has nothing to do without torch?"""
    return _LATE in plugins.read_help("job.sources", name)


class Late:
    """Stands for a source, and passes on what is wanted of it once that has begun."""

    def __init__(self, host: Host, name: str) -> None:
        self._host, self._name = host, name
        self._source: Any = None
        self._arrival = Arrival(_is_here, host.guard(self._arrive))

    def start(self) -> None:
        if _is_here():
            self._begin()
        else:
            self._host.detail = WAITS
            self._arrival.start()

    def stop(self) -> None:
        self._arrival.stop()
        if self._source is not None:
            self._source.stop()

    def configure(self) -> None:
        if hasattr(self._source, "configure"):
            self._source.configure()

    def publish(self) -> None:
        if hasattr(self._source, "publish"):
            self._source.publish()

    def _arrive(self) -> None:
        self._host.detail = None
        self._begin()
        self._host.tell(self._host.detail)

    def _begin(self) -> None:
        self._source = plugins.load("job.sources", self._name).Source(self._host)
        self._source.start()


def _is_here() -> bool:
    """Is all of torch imported that a source needs?"""
    # Torch defines `compile` after it has imported nn, optim, utils.data and distributed.
    return "compile" in getattr(sys.modules.get("torch"), "__dict__", {})
