"""Python's garbage collections."""

from __future__ import annotations

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
