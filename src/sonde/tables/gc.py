"""Python's garbage collections."""

from __future__ import annotations

from sonde.session.schema import column, i64, u8


class GcPause:
    """A pause of the program for Python's garbage collector."""

    RING_BYTES = 2**20
    t_ns: i64 = column("start", "ns")
    dur_ns: i64 = column("duration", "ns")
    generation: u8 = column("generation that was collected: 0, 1 or 2")
    collected: i64 = column("objects freed")
    uncollectable: i64 = column("objects that could not be freed")


ROWS = (GcPause,)
