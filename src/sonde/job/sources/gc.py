"""Python garbage collections."""

from __future__ import annotations

import gc

from sonde import _core
from sonde.job.source_context import Host
from sonde.session.schema import column, i64, u8


class GcPause:
    """One stop of the program by Python's garbage collector."""

    RING_BYTES = 2**20
    t_ns: i64 = column("start", "ns")
    dur_ns: i64 = column("how long it lasted", "ns")
    generation: u8 = column("0, 1 or 2")
    collected: i64 = column("objects freed")
    uncollectable: i64 = column("objects that could not be freed")


ROWS = (GcPause,)


class Source:
    """Rows from gc.callbacks."""

    def __init__(self, host: Host) -> None:
        # In C, so no guard: it cannot raise, and no signal can be lost in it.
        self._on = _core.GcCallback(host.writer(GcPause))

    def start(self) -> None:
        gc.callbacks.append(self._on)

    def stop(self) -> None:
        if self._on in gc.callbacks:
            gc.callbacks.remove(self._on)
