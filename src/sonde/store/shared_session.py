"""Sessions of other hosts, as their shared place has them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sonde import settings
from sonde.errors import Error, NoSession
from sonde.session import Session
from sonde.session.records import Exit, Meta, Sealed
from sonde.session.target import add_known_children, find_nearest_name
from sonde.store.archive import Segment
from sonde.store.place import (
    SESSIONS,
    FleetPlace,
    Listing,
    SharedFile,
    read_name,
    require_files,
    split_target,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pyarrow.dataset as ds

_LATE_S = 120.0  # beyond a few shipments; then the host may be gone


class OpenPlace(FleetPlace):
    """A place that is asked: the files of a table are listed once."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._listings: dict[str, Listing] = {}
        self._tables: list[str] | None = None

    def list_tables(self) -> list[str]:
        if self._tables is None:
            self._tables = super().list_tables()
        return self._tables

    def list_files(self, table: str) -> Listing:
        if table not in self._listings:
            self._listings[table] = super().list_files(table)
        return self._listings[table]

    def forget(self) -> None:
        """Forget which files there are: some have been replaced."""
        self._listings.clear()
        self._tables = None

    def open_table(
        self, table: str, sessions: Sequence[SharedSession], schema: pa.Schema
    ) -> ds.Dataset:
        """Return the rows of a table; of files that were merged, also those of other sessions."""
        import pyarrow.dataset as ds  # only here: most recordings are in a folder

        files = self.list_files(table).choose({one.id for one in sessions})
        paths = [file.path for file in files]
        if not paths:
            return ds.dataset(schema.empty_table())
        return ds.dataset(
            paths, schema=schema, format="parquet", partitioning=None, filesystem=self.fs
        )

    def read_table(
        self, table: str, sessions: Sequence[SharedSession], schema: pa.Schema
    ) -> pa.Table:
        """Return the rows of these sessions, in these columns."""
        import pyarrow.compute as pc  # only here: to import it takes a twentieth of a second

        wanted = schema if "session" in schema.names else schema.append(SESSION)
        found = self.open_table(table, sessions, wanted)
        ids = pa.array([one.id for one in sessions], pa.string())
        return found.to_table(filter=pc.field("session").isin(ids)).select(schema.names)


SESSION = pa.field("session", pa.string())


class DistantSession(Session):
    """A session of another host: what its row of sonde.session says, and when that was."""

    def __init__(self, place: str, row: dict[str, Any], known_ns: int) -> None:
        self.row, self._known_ns = row, known_ns
        self.folder = f"{place}#{row['session']}"
        self.meta = meta = Meta.load(json.loads(row["meta"]), self.folder)
        self.id, self.host, self.pid, self.rank = meta.id, meta.host, meta.pid, meta.rank
        self.start_wall_ns, self.wall_offset_ns = meta.wall_ns, meta.wall_ns - meta.monotonic_ns

    def path(self, *parts: str) -> str:
        return "/".join((self.folder, *parts))  # for messages: nothing of it is a local file

    def find_rings(self) -> list[str]:
        return []

    def find_state(self) -> str:
        return str(self.row["state"])

    @property
    def end_wall_ns(self) -> int:
        """When it ended; while it runs, the moment that its row is of."""
        end_ns = self.row["end_wall_ns"]
        return self._known_ns if end_ns is None else int(end_ns)

    def is_alive(self) -> bool:
        return False  # not for us: nothing here can be steered

    def is_here(self) -> bool:
        return False

    def read_sealed(self) -> Sealed:
        return Sealed(
            state=str(self.row["state"]), end_wall_ns=self.end_wall_ns,
            sealed_wall_ns=self._known_ns, tables={},
        )  # fmt: skip

    def read_exit(self) -> Exit | None:
        return None

    def read_config(self) -> dict[str, settings.Value]:
        """Return the settings that it began with."""
        known = self.meta.config
        return {name: known.get(name, key.default)  # type: ignore[misc]
                for name, key in settings.list_keys().items()}  # fmt: skip


class SharedSession(DistantSession):
    """A session in a shared place, as of its last shipment."""

    def __init__(self, place: OpenPlace, row: dict[str, Any], shipped_ns: int) -> None:
        super().__init__(place.uri, row, shipped_ns)
        self.place = place

    def find_state(self) -> str:
        """Return its state when it was last shipped; `unknown` if that should not be so long ago
        while it runs."""
        state = super().find_state()
        if state != "running":
            return state
        every_s = float(self.read_config()["archive.ship_every"])
        quiet_s = time.time() - self._known_ns / 1e9
        return "running" if quiet_s < 3 * every_s + _LATE_S else "unknown"


class SharedSegment(Segment):
    """One file of a shared place, as far as it is of one session."""

    def __init__(self, session: SharedSession, file: SharedFile) -> None:
        super().__init__(file.path, file.first, file.last, 0, 0)
        self._session, self._is_merged = session, file.session is None

    def is_sound(self) -> bool:
        return True  # a file that is not can be read by no engine

    def read(self) -> pa.Table:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        with self._session.place.fs.open_input_file(self.path) as file:
            rows = pq.read_table(file)
        return rows.filter(pc.equal(rows["session"], self._session.id)) if self._is_merged else rows


class SharedTable:
    """One table of a session in a shared place: all of it is in files."""

    def __init__(self, session: SharedSession, name: str) -> None:
        listing = session.place.list_files(name)
        self.segments = [SharedSegment(session, one) for one in listing.choose({session.id})]

    def list_sound(self) -> list[SharedSegment]:
        """Return the files, in the order of their rows."""
        return sorted(self.segments, key=lambda one: one.first)

    def read_live(self) -> pa.Table:
        """Return no rows: the newest ones are in a file as well."""
        return pa.table({})


# What a DistantSession needs of a row of sonde.session.
DISTANT_COLUMNS = (
    "session", "state", "end_wall_ns", "meta", "exit_code", "exit_signal", "exit_reason",
)  # fmt: skip


def list_shared(place: OpenPlace) -> list[SharedSession]:
    """Return all sessions of a place, oldest first."""
    import pyarrow.dataset as ds  # only here: most recordings are in a folder

    require_files(place)
    listing = place.list_files(SESSIONS)
    schema = pa.schema(
        [pa.field(name, pa.int64() if name in ("end_wall_ns", "exit_code") else pa.string())
         for name in DISTANT_COLUMNS]
    )  # fmt: skip
    names = [*(file.path for file in listing.files if file.session),
             *(name for names in listing.lists.values() for name in names)]  # fmt: skip
    times = {one.session: one.last for one in map(read_name, names) if one is not None}
    files = [file.path for file in listing.files]
    rows = ds.dataset(files, schema=schema, format="parquet", partitioning=None,
                      filesystem=place.fs).to_table().to_pylist()  # fmt: skip
    found = []
    for row in rows:
        try:
            found.append(SharedSession(place, row, times.get(row["session"], 0)))
        except (Error, ValueError, TypeError):
            continue  # a newer sonde, or no session of sonde at all
    return sorted(found, key=lambda one: one.start_wall_ns)


def find_shared(target: str) -> list[SharedSession]:
    """Return the sessions that `PLACE`, `PLACE#JOB`, `PLACE#JOB/RANK` or `PLACE#SESSION` names."""
    uri, part = split_target(target)
    sessions = list_shared(OpenPlace(uri))
    if not part:
        return sessions
    job, _, rank = part.rpartition("/")
    found = [one for one in sessions if part in (one.meta.job, one.id)]
    if not found and rank.isdecimal():
        found = [one for one in sessions if one.meta.job == job and one.rank == int(rank)]
    if found:
        return found
    names = {name for one in sessions for name in (one.meta.job or one.id, one.id)}
    hint = find_nearest_name(part, names)
    raise NoSession(f"{uri} has nothing called {part}; {hint}`sonde ps {uri}` lists what it has")


def add_shared_children(sessions: Sequence[SharedSession]) -> list[SharedSession]:
    """Return sessions of a place and those that they have forked."""
    return add_known_children(list(sessions), list_shared(sessions[0].place))
