"""What is in a shared place: `shipped.json` of a session, and how rows and files there are named.

The process that ships writes it after every file, so that another one can go on where it was
killed; a file that was sent but not noted is sent again under the same name."""

from __future__ import annotations

import os
import time

from sonde.errors import Damaged, Error, NoSession
from sonde.session.folder import Session, list_folders
from sonde.session.records import Record

NAME = "shipped.json"
ON, FAILED, OFF = "on", "failed", "unavailable"
_LATE = 5  # shipments that may be missed, and a minute, before somebody is told


class ShippedTable(Record):
    """How much of one table has been shipped."""

    done: int  # rows with smaller tickets are in the shared place for good
    newest: str | None = None  # the file with the rows since then, or with the rows of a view
    end: int = 0  # the first ticket that is not in that file; of a view, a checksum of its rows
    unshipped: int = 0  # rows that retention had removed before they could be sent


class Shipped(Record):
    """shipped.json: how much of a session is in its shared place, and whether that works."""

    to: str
    state: str
    detail: str | None = None
    since_wall_ns: int  # when it came into this state
    tables: dict[str, ShippedTable]
    whole: bool = False  # the session has ended, and all of it is there
    # Files that another one covers, and since when: they stay a while for whoever reads them.
    covered: dict[str, int] | None = None


def read_shipped(session: Session) -> Shipped | None:
    """Return what has been shipped of a session; None if nothing has been, or is to be."""
    try:
        return Shipped.read(session.path(NAME))
    except FileNotFoundError:
        return None


def has_unshipped(root: str) -> bool:
    """Tell whether a session of this root is yet to be shipped."""
    for folder in list_folders(root):
        try:
            session = Session(folder)
            if session.read_config()["archive.to"] and session.host == os.uname().nodename:
                shipped = read_shipped(session)
                if shipped is None or not (shipped.whole or shipped.state == OFF):
                    return True
        except (Error, OSError):
            continue
    return False


def describe_shipping(session: Session) -> dict[str, object] | None:
    """Return the row of sonde.source about shipping; None if the session is not to be shipped."""
    try:
        shipped = read_shipped(session)
    except Damaged as error:
        return {"source": "ship", "state": FAILED, "detail": str(error), "t_ns": None}
    late_s = 0.0 if shipped is not None and shipped.whole else _find_late_s(session)
    if shipped is None:
        if not late_s:
            return None
        why = f"nothing has been sent for {late_s:.0f} s: no process is there that ships"
        return {"source": "ship", "state": FAILED, "detail": why, "t_ns": None}
    state, detail = shipped.state, shipped.detail
    if late_s:
        # A file system that hangs stops the process that would say so.
        state, detail = FAILED, f"nothing has been sent to {shipped.to} for {late_s:.0f} s"
    t_ns = shipped.since_wall_ns - session.wall_offset_ns
    return {"source": "ship", "state": state, "detail": detail or shipped.to, "t_ns": t_ns}


def _find_late_s(session: Session) -> float:
    """Return for how long nobody has tried to ship a live session; 0 if somebody did lately."""
    try:
        values = session.read_config()
        if not values["archive.to"] or not session.is_alive():
            return 0.0
        try:
            since_s = os.stat(session.path(NAME)).st_mtime
        except FileNotFoundError:
            since_s = session.start_wall_ns / 1e9
    except (OSError, Damaged, NoSession):
        return 0.0
    quiet_s = time.time() - since_s
    return quiet_s if quiet_s > _LATE * float(values["archive.ship_every"]) + 60 else 0.0
