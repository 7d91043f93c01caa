"""The process that ships: `shipper ROOT` sends archives to the places that `archive.to` names.

It is a child of the collector, so that neither a slow place nor the libraries for object stores
can hold up what the collector does, and it ends with the collector. It knows nothing that is not
in `shipped.json`: it can be killed at any time, and another one goes on."""

from __future__ import annotations

import os
import random
import sys
import threading
import time

import pyarrow as pa

from sonde.collector.shipment import Shipment
from sonde.errors import Error
from sonde.session import Session, files, list_folders
from sonde.session.shipped import FAILED, NAME, OFF, Shipped, read_shipped
from sonde.store.place import FleetPlace, PlaceError

TICK_S = 1.0
PAUSE_S = (1.0, 300.0)  # after a failure of a place: the first pause, and the longest
GIVE_UP_S = 3600.0  # for recordings that have ended; the next recording makes us try again
LINGER_S = 5.0  # after the last one is whole
# Errors that damaged files may lead to, also inside of Arrow.
_FAILURES = (Error, OSError, ValueError, LookupError, TypeError, RuntimeError, pa.ArrowException)


class Store:
    """A shared place that may fail, and is left alone for a while after a failure."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._place: FleetPlace | None = None
        self._pause_s = 0.0
        self.again_s = float("-inf")
        self.failing_since_s: float | None = None

    def open(self) -> FleetPlace:
        """Return the place; raise PlaceError if it cannot be reached."""
        if self._place is None:
            self._place = FleetPlace(self.uri)
        return self._place

    def succeed(self) -> None:
        """Note that it works."""
        self._pause_s, self.failing_since_s = 0.0, None

    def fail(self, now_s: float) -> None:
        """Note that it does not, and when to try again."""
        self._pause_s = min(PAUSE_S[1], max(PAUSE_S[0], 2 * self._pause_s))
        self.again_s = now_s + self._pause_s
        if self.failing_since_s is None:
            self.failing_since_s = now_s


class Shipper:
    """Ships all sessions of a root that have a place to go to."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._stores: dict[str, Store] = {}
        self._shipments: dict[str, Shipment] = {}
        self._sessions: dict[str, tuple[Session, str]] = {}  # and where each is to go
        self._done: set[str] = set()
        self._sealed: set[str] = set()
        self._due_s: dict[str, float] = {}
        self._listed_ns = 0
        self._busy_s = time.monotonic()

    def run(self) -> None:
        """Run until everything is shipped."""
        while True:
            now_s = time.monotonic()
            self.step(now_s)
            if self._has_work(now_s):
                self._busy_s = now_s
            elif now_s - self._busy_s > LINGER_S:
                return
            time.sleep(TICK_S)

    def step(self, now_s: float) -> None:
        """Ship every session that is due."""
        self._find_new()
        for folder, (session, to) in list(self._sessions.items()):
            store = self._stores.setdefault(to, Store(to))
            is_sealed = os.path.exists(session.path(files.SEALED))
            if is_sealed and folder not in self._sealed:
                self._sealed.add(folder)
                self._due_s.pop(folder, None)  # the rest of it, at once
            due_s = self._due_s.get(folder, float("-inf"))
            if now_s >= max(due_s, store.again_s):
                self._ship(session, store, now_s)

    def _ship(self, session: Session, store: Store, now_s: float) -> None:
        folder = session.folder
        try:
            every_s = float(session.read_config()["archive.ship_every"])
            shipment = self._shipments.get(folder)
            # Hosts that were started together must not all send at once.
            wait = random.uniform(0.5, 1.0) if shipment is None else 1.0
            self._due_s[folder] = now_s + wait * every_s
            if shipment is None:
                shipment = self._shipments[folder] = Shipment(session, store.open())
            shipment.run(now_s, every_s)
            store.succeed()
            if shipment.is_whole:
                self._forget(folder)
        except PlaceError as error:
            store.fail(now_s)
            self._due_s[folder] = float("-inf")
            self._note(session, store.uri, FAILED, f"{error}; rows are kept here meanwhile")
        except _FAILURES as error:  # one session's trouble must not end it for all
            if not os.path.isdir(folder):
                self._forget(folder)
                return
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self._note(session, store.uri, FAILED, why)
            self._due_s[folder] = now_s + PAUSE_S[1]

    def _note(self, session: Session, to: str, state: str, detail: str) -> None:
        """Write why a session is not shipped, where sonde.source finds it."""
        shipment = self._shipments.get(session.folder)
        try:
            if shipment is not None:
                shipment.note(state, detail)
                return
            known = read_shipped(session) or Shipped(
                to=to, state=state, since_wall_ns=time.time_ns(), tables={}
            )
            known.replace(state=state, detail=detail).write(session.path(NAME))
        except (OSError, Error):
            pass  # the disk is full, or the session is gone

    def _forget(self, folder: str) -> None:
        self._done.add(folder)
        self._sealed.discard(folder)
        for known in (self._sessions, self._shipments, self._due_s):
            known.pop(folder, None)

    def _find_new(self) -> None:
        changed_ns = os.stat(self.root).st_mtime_ns
        if changed_ns == self._listed_ns:
            return
        self._listed_ns = changed_ns
        folders = list_folders(self.root)
        self._done &= set(folders)
        for folder in folders:
            if folder not in self._sessions and folder not in self._done:
                self._add(folder)

    def _add(self, folder: str) -> None:
        try:
            session = Session(folder)
            values = session.read_config()
            shipped = read_shipped(session)
        except (Error, OSError):
            self._done.add(folder)
            return
        to = str(values["archive.to"])
        is_mine = session.host == os.uname().nodename
        if not to or not is_mine or (shipped is not None and shipped.whole):
            self._done.add(folder)
        elif not values["archive"]:
            self._note(session, to, OFF, "archive=off: only what is archived is shipped")
            self._done.add(folder)
        else:
            self._sessions[folder] = session, to

    def _has_work(self, now_s: float) -> bool:
        for folder, (_session, to) in self._sessions.items():
            since_s = self._stores[to].failing_since_s if to in self._stores else None
            is_live = not os.path.exists(os.path.join(folder, files.SEALED))
            if is_live or since_s is None or now_s - since_s < GIVE_UP_S:
                return True
        return False


def main() -> None:
    """Run as `shipper ROOT`; end with the process at the other end of stdin."""
    threading.Thread(target=_await_end, daemon=True).start()
    Shipper(sys.argv[1]).run()
    # Libraries for object stores have threads of their own, which may hang.
    os._exit(0)


def _await_end() -> None:
    while os.read(0, 1):
        continue
    os._exit(0)


if __name__ == "__main__":
    main()
