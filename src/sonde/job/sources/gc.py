"""Python's garbage collections."""

from __future__ import annotations

import gc

from sonde import _core
from sonde.job.source_context import SourceContext
from sonde.tables.gc import GcPause

ON = True
NEEDS = ()


class Source:
    """Writes a row per collection, from gc.callbacks."""

    def __init__(self, context: SourceContext) -> None:
        # The callback is in C and needs no guard: it cannot raise, and no signal can be lost in it.
        self._on = _core.GcCallback(context.writer(GcPause))

    def start(self) -> None:
        gc.callbacks.append(self._on)

    def stop(self) -> None:
        if self._on in gc.callbacks:
            gc.callbacks.remove(self._on)
