"""When a session ended, without Arrow."""

from __future__ import annotations

import time

from sonde import _core
from sonde.session.folder import Session
from sonde.session.ring import Ring

_NEWEST = 1024  # rows to look at: they may be a little out of order


def find_end_wall_ns(session: Session) -> int:
    """Return when a session ended: as its control page says, or when its newest row was written.

    Modification times of files are no help: stores to mapped memory do not change them."""
    control = session.read_control()
    if control["state"] in (_core.STOPPED, _core.EXITED):
        return control["state_t_ns"] + session.wall_offset_ns
    times = [_find_newest_ns(path) for path in session.find_rings()]
    newest = max((t for t in times if t is not None), default=None)
    return time.time_ns() if newest is None else newest + session.wall_offset_ns


def _find_newest_ns(path: str) -> int | None:
    """Return the time of the newest row of a ring; None if it has none, or has just gone."""
    try:
        ring = Ring(path)
    except FileNotFoundError:
        return None
    head = ring.head
    batch = ring.read(max(0, head - _NEWEST), head)
    place = [field.name for field in ring.schema.fields].index("t_ns")
    times = batch.buffers[2 * place]
    assert times is not None
    return max(memoryview(times).cast("q")[: batch.rows], default=None)
