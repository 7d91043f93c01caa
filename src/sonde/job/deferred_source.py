"""A source that is loaded and started once the program has imported what it NEEDS."""

from __future__ import annotations

import sys

from sonde import plugins
from sonde.errors import Unavailable
from sonde.job.import_watch import ImportWatch
from sonde.job.source_context import SourceContext, has_gil
from sonde.tables.recording import WAITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# An attribute by which a module is known to be fully imported, because it is among the last to be
# defined. Torch defines `compile` after it has imported nn, optim, utils.data and distributed.
_LAST = {"torch": "compile"}


class DeferredSource:
    """Stands in for a source, and passes calls on to it once it has begun."""

    def __init__(self, context: SourceContext, name: str, needs: tuple[str, ...]) -> None:
        self._context, self._name, self._needs = context, name, needs
        self._source: Any = None
        self._watch = ImportWatch(self._can_begin, context.guard(self._begin_late))

    def start(self) -> None:
        if not has_gil():
            raise Unavailable("this Python has no GIL, which keeps the numbers sound")
        if self._can_begin():
            self._begin()
        else:
            self._context.detail = WAITS + ", ".join(self._needs)
            self._watch.start()

    def stop(self) -> None:
        self._watch.stop()
        if self._source is not None:
            self._source.stop()

    def configure(self) -> None:
        if hasattr(self._source, "configure"):
            self._source.configure()

    def publish(self) -> None:
        if hasattr(self._source, "publish"):
            self._source.publish()

    def _can_begin(self) -> bool:
        for name in self._needs:
            if _LAST.get(name, "__name__") not in getattr(sys.modules.get(name), "__dict__", ()):
                return False
        return True

    def _begin_late(self) -> None:
        self._context.detail = None
        self._begin()
        self._context.report(self._context.detail)

    def _begin(self) -> None:
        self._source = plugins.load("job.sources", self._name).Source(self._context)
        self._source.start()
        if "torch" in self._needs:
            from sonde.job.torch.old_compiler import leave_out_ours

            leave_out_ours(sys.modules["torch"])  # also what was loaded just now
