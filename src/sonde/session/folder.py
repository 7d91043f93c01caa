"""Session folders as readers see them: which process they are of, and whether it is live."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

from sonde import _core
from sonde.errors import Damaged, Newer, NoSession
from sonde.session import ring
from sonde.session.files import (
    ALIVE,
    CONFIG,
    CONTROL,
    EXIT,
    META,
    SEALED,
    VERSION,
    OwnFolder,
    read_checked,
)
from sonde.session.process import read_boot_id, read_pid_namespace, read_start_ticks
from sonde.session.records import Exit, Meta, Sealed, read_config
from sonde.settings import Value

STATES = ("running", "ended", "killed", "unknown")
_REMEMBERED = (
    512  # files, some 50 KB each: agents and pages are asked about the same sessions again
)


class Session:
    """A session folder, read from any process, live or long ended."""

    ahead_ns = 0  # how far its host's clock is known to be ahead of that of a whole job
    clock: tuple[int, int] | None = None  # the same with its error, as its agent told it

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.meta = meta = self._read_meta()
        self.id, self.host, self.pid, self.rank = meta.id, meta.host, meta.pid, meta.rank
        self._sealed: Sealed | None = None  # never changes once it is written
        self.start_wall_ns, self.wall_offset_ns = meta.wall_ns, meta.wall_ns - meta.monotonic_ns

    def refresh(self) -> None:
        """Read again what may have become known since: which rank the process is. What has become
        of the file is not held against a session that was sound."""
        try:
            self.meta = self._read_meta()
        except Damaged:
            return
        self.rank = self.meta.rank

    def path(self, *parts: str) -> str:
        """Return the path of a file of this session."""
        return os.path.join(self.folder, *parts)

    def _read_meta(self) -> Meta:
        path = self.path(META)
        try:
            return _read_meta(path, *_identify(path))
        except PermissionError:
            raise Damaged(
                f"{self.folder} cannot be read: it is another user's, or its permissions forbid it"
            ) from None
        except OSError:
            raise Damaged(f"{self.folder} is not a session folder: it has no {META}") from None

    def read_sealed(self) -> Sealed | None:
        """Return what the collector wrote at the end of the session, or None before that."""
        if self._sealed is None:
            path = self.path(SEALED)
            try:
                self._sealed = _read_sealed(path, *_identify(path))
            except FileNotFoundError:
                return None
        return self._sealed

    def read_exit(self) -> Exit | None:
        """Return what is known of the end of the process: as the collector saw it, else as the
        process wrote it down; None if nothing is."""
        try:
            known = Exit.read(self.path(EXIT))
        except FileNotFoundError:
            known = Exit(status=None)
        if known.status is None:
            try:
                told = self.read_control()["exit_status"]
            except Damaged:
                told = 0
            known.status = (told - 1) << 8 if told else None
        return None if known.dump() == Exit(status=None).dump() else known

    def read_config(self) -> dict[str, Value]:
        """Return the settings in force."""
        try:
            return read_config(self.path(CONFIG))
        except FileNotFoundError:
            raise NoSession(f"{self.folder} has been removed or has lost its {CONFIG}") from None

    def map_control(self, *, writable: bool = False) -> _core.Map:
        """Map the control page; NotYours if it is to be writable and belongs to another user."""
        if not writable:
            return ring.map_file(self.path(CONTROL))
        with OwnFolder(self.folder) as folder:
            return ring.map_file(os.path.join(folder, CONTROL), writable=True)

    def read_control(self) -> dict[str, int]:
        """Return the fields of the control page."""
        try:
            return _core.control_get(self.map_control())
        except _core.Damaged:
            raise Damaged(f"{self.path(CONTROL)} is truncated or damaged") from None
        except _core.Newer:
            raise Newer(self.path(CONTROL)) from None
        except OSError as error:
            raise Damaged(f"{self.path(CONTROL)}: {error.strerror}") from None

    def find_rings(self) -> list[str]:
        """Return the paths of the session's rings."""
        try:
            names = sorted(os.listdir(self.folder))
        except OSError:
            raise NoSession(f"{self.folder} has been removed") from None
        return [self.path(name) for name in names if name.endswith(ring.SUFFIX)]

    def is_here(self) -> bool:
        """Return whether the session was recorded on this machine since it last booted."""
        return self.host == os.uname().nodename and self.meta.boot_id == read_boot_id()

    def shares_pids(self) -> bool:
        """Return whether the session's pid means the same process to us as to itself."""
        return self.is_here() and self.meta.pid_namespace in (None, read_pid_namespace())

    @property
    def is_monitor(self) -> bool:
        """Whether it is about the machine and others, not about its own process."""
        return self.meta.config.get("host.pid", -1) != -1

    def is_alive(self) -> bool:
        """Return whether a process is still recording into this folder."""
        try:
            held = self.meta.locked and _core.alive_probe(os.fsencode(self.path(ALIVE)))
        except OSError:
            held = False
        # If there is no lock (the file system has none, or the job closed "all" its files), the
        # mapped page is the proof: the process keeps it until it ends or becomes another program.
        return held or (self._is_same_process() and self._is_running() and self._is_mapped())

    def _is_running(self) -> bool:
        try:
            return self.read_control()["state"] in (_core.STARTING, _core.RUNNING)
        except Damaged:
            return False

    def _is_same_process(self) -> bool:
        return self.shares_pids() and read_start_ticks(self.pid) == self.meta.start_ticks

    def _is_mapped(self) -> bool:
        try:
            with open(f"/proc/{self.pid}/maps", encoding="utf-8", errors="replace") as file:
                page = os.path.realpath(self.path(CONTROL))
                return any(line.rstrip("\n").endswith(page) for line in file)
        except OSError:
            return False

    def find_state(self) -> str:
        """Return `running`, `ended`, `killed` (by a signal or a crash) or `unknown`."""
        sealed = self.read_sealed()
        if sealed is not None:
            return self._judge_end(sealed.state)
        if self.host != os.uname().nodename:
            return "unknown"
        if self.is_alive():
            return "running"
        try:
            state = self.read_control()["state"]
        except Damaged:
            return "unknown"
        if state == _core.STOPPED:
            return "ended"
        # The lock is free but the process is alive: it has become another program (exec).
        is_orderly = state == _core.EXITED or self._is_same_process()
        return self._judge_end("ended" if is_orderly else "killed")

    def _judge_end(self, guess: str) -> str:
        """Return whether the process ended by itself or was killed; the guess if nobody saw it."""
        known = self.read_exit()
        if known is None or known.status is None:
            return guess
        return "killed" if known.status & 0x7F else "ended"


def _identify(path: str) -> tuple[int, int, int]:
    """Return what changes when a file does: meta.json may be written twice, sealed.json once."""
    status = os.lstat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=_REMEMBERED)
def _read_meta(path: str, *_identity: int) -> Meta:
    values = read_checked(path)
    version = values.get("format")
    if isinstance(version, int) and version > VERSION:
        raise Newer(os.path.dirname(path))
    return Meta.load(values, path)


@functools.lru_cache(maxsize=_REMEMBERED)
def _read_sealed(path: str, *_identity: int) -> Sealed:
    return Sealed.read(path)


def list_sessions(root: str) -> Iterator[Session]:
    """Yield every readable session under a root, oldest first; skip damaged folders."""
    found = []
    for folder in list_folders(root):
        try:
            found.append(Session(folder))
        except (Damaged, Newer):
            continue
    yield from sorted(found, key=lambda session: session.start_wall_ns)


def list_folders(root: str) -> list[str]:
    """Return the session folders under a root, including damaged ones."""
    try:
        with os.scandir(root) as entries:
            return sorted(
                entry.path
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            )
    except OSError:
        return []
