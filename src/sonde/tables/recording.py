"""The state of the sources and sensors of a recording."""

from __future__ import annotations

from sonde.session.schema import column, i64, text

# How the detail begins of a source that is on, and has nothing to do yet.
WAITS = "waiting for the program to import "


class SourceLog:
    """A source was switched on or off, failed, or is not available here."""

    SCHEMA = "sonde"
    RING_BYTES = 64 * 1024
    t_ns: i64 = column("when", "ns")
    source: text = column("name of the source or sensor")
    state: text = column("on, off, failed or unavailable")
    detail: text | None = column("why, or what a user should know of a source that is on")


ROWS = (SourceLog,)
