"""How a process ended, seen from outside: its status, and whether memory had run out.

Only a parent may wait for a process. The kernel tells others in two ways: for as long as nobody has
waited for it, /proc still has its status; after that the descriptor of the process has (since Linux
6.15). A job leaves such a descriptor of itself to the collector that it starts, so that its end is
known even if it is killed before the collector can look. A session whose process nobody saw ending
says what the process wrote down itself."""

from __future__ import annotations

import fcntl
import os
import select
import struct
from io import FileIO

from sonde import _core
from sonde.collector.sensors._cgroups import Group, Groups
from sonde.collector.sensors._files import Reader, read_numbers
from sonde.errors import Damaged
from sonde.session import Session
from sonde.session.ending import find_exception
from sonde.session.files import EXIT
from sonde.session.records import Exit

_INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info: the mask comes first, the status last
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_HAS_STATUS = 1 << 3
_GIVEN = 3  # the descriptor of the process that started us: see kernel/spawn.c
Kills = tuple[int, int]  # processes that were killed for memory; times that a limit was reached


class KillCounts:
    """The counters of the kernel's out-of-memory killer."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._groups = reader, Groups(reader)

    def begin(self) -> None:
        """Begin the next reading: everything is read again."""
        self._reader.begin()

    def find_group(self, pid: int) -> Group | None:
        """Return the cgroup of a process; None if it is gone."""
        try:
            return self._groups.find(pid)
        except OSError:
            return None

    def read(self, group: Group | None) -> Kills:
        """Return the counts of a cgroup; those of the machine if it has none."""
        if group is not None:
            is_new = group.is_unified("memory")
            events = self._read(
                group.name("memory", "memory.events" if is_new else "memory.oom_control")
            )
            if b"oom_kill" in events:
                return events[b"oom_kill"], self._count_limits(group)
        return self._read(f"{self._reader.proc}/vmstat").get(b"oom_kill", 0), 0

    def _count_limits(self, group: Group) -> int:
        """Return how often this cgroup and those above it have reached their limits."""
        found = 0
        for folder in group.list_up("memory"):
            if group.is_unified("memory"):
                found += self._read(f"{folder}/memory.events").get(b"oom", 0)
            else:
                try:
                    found += int(self._reader.read(f"{folder}/memory.failcnt")[1])
                except (OSError, ValueError):
                    continue
        return found

    def _read(self, path: str | None) -> dict[bytes, int]:
        try:
            return {} if path is None else read_numbers(self._reader.read(path)[1])
        except OSError:
            return {}


class ProcessEnd:
    """The process of a session, held by a descriptor that is never that of another process.

    `is_starter`: it is the process that started this one."""

    def __init__(self, session: Session, counts: KillCounts, is_starter: bool = False) -> None:
        self._session, self._counts = session, counts
        self.folder = session.folder
        self._held = _open_process(session) or (_open_given() if is_starter else None)
        self._exception: str | None = None
        self._group: Group | None = None
        self._kills: Kills | None = None
        self.refresh()

    def refresh(self) -> None:
        """Note how many processes were killed for memory before this one."""
        if self._held is not None and not self._is_gone():
            self._group = self._counts.find_group(self._session.pid) or self._group
            self._kills = self._counts.read(self._group)

    def write(self) -> bool:
        """Write down what is known of the end; return whether there is no more to come."""
        if self._became_another():
            return True
        is_gone = self._held is None or self._is_gone()
        status = self._read_status() if is_gone else None
        self._exception = self._exception or find_exception(self._session)
        if status is not None or self._exception is not None:
            Exit(
                status=status,
                out_of_memory=self._find_lack()
                if status is not None and status & 0x7F == 9
                else None,
                exception=self._exception,
            ).write(self._session.path(EXIT))
        return is_gone

    def _became_another(self) -> bool:
        """Return whether the process goes on without this session: its recording was stopped, or
        another program has taken its place."""
        try:
            state = self._session.read_control()["state"]
        except Damaged:
            return True
        if state == _core.EXITED or self._held is None or self._is_gone():
            return state == _core.STOPPED
        # One that is ending has no memory any more.
        return state == _core.STOPPED or os.path.lexists(f"/proc/{self._session.pid}/exe")

    def _is_gone(self) -> bool:
        poll = select.poll()
        assert self._held is not None
        poll.register(self._held, select.POLLIN)
        return bool(poll.poll(0))

    def _read_status(self) -> int | None:
        if self._held is None:
            return None
        status = _ask_status(self._held)
        if status is not None:
            return status
        fields = _read_stat(self._session.pid)
        is_it = len(fields) > 49 and int(fields[19]) == self._session.meta.start_ticks
        return int(fields[49]) if is_it and fields[0] == b"Z" else None

    def _find_lack(self) -> str | None:
        """Return whose memory was full when the process was killed, if any was."""
        if self._kills is None:
            return None
        self._counts.begin()
        kills, limits = self._counts.read(self._group)
        if kills <= self._kills[0]:
            return None
        return "cgroup" if limits > self._kills[1] else "machine"


def _open_process(session: Session) -> FileIO | None:
    """Return a descriptor of the session's process; None if it is gone, or cannot be seen here."""
    if not session.shares_pids():
        return None
    try:
        held = FileIO(os.pidfd_open(session.pid))  # closes itself with this object
    except (OSError, AttributeError):
        return None
    # The pid may be another's by now. Once it is held, what /proc says is about the same process.
    fields = _read_stat(session.pid)
    if len(fields) > 19 and int(fields[19]) == session.meta.start_ticks:
        return held
    held.close()
    return None


def _open_given() -> FileIO | None:
    """Return the descriptor that the process that started us has left, if that process is gone."""
    try:
        held = FileIO(os.dup(_GIVEN))
    except OSError:
        return None
    return None if _ask_status(held) is None else held


def _ask_status(held: FileIO) -> int | None:
    """Return the status of a process that was waited for; None if the kernel does not tell it."""
    info = bytearray(_INFO.pack(_HAS_STATUS, *[0] * 13))
    try:
        fcntl.ioctl(held, _GET_INFO, info)
    except OSError:
        return None  # an older kernel, or no descriptor of a process
    mask, *_others, status = _INFO.unpack(info)
    return int(status) if mask & _HAS_STATUS else None


def _read_stat(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name may contain spaces and brackets; the fields follow the last bracket.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
