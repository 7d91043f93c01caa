"""The state of the sources and sensors of a recording."""

from __future__ import annotations

from sonde.session.schema import column, i64, text

# The detail of a source that is on but has nothing to do yet begins with this.
WAITS = "waiting for the program to import "


class SourceLog:
    """A source that was switched on or off, failed, or is not available here."""

    SCHEMA = "sonde"
    RING_BYTES = 64 * 1024
    t_ns: i64 = column("when", "ns")
    source: text = column("name of the source or sensor")
    state: text = column("on, off, failed or unavailable")
    detail: text | None = column("reason, or what a user should know about a source that is on")


ROWS = (SourceLog,)
