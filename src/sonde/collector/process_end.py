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
import signal
import struct
from collections.abc import Iterable
from contextlib import suppress

from sonde import _core
from sonde.collector.descriptor import Descriptor
from sonde.collector.sensors._cgroups import Groups
from sonde.collector.sensors._files import Reader, read_numbers
from sonde.errors import Damaged
from sonde.session import Session
from sonde.session.ending import (
    find_end_wall_ns,
    find_exception,
    find_exit_call,
    find_fault,
    find_logged_lack,
)
from sonde.session.files import EXIT, MEMORY_KILLS
from sonde.session.memory_kills import Counts, find_kept_kill, note_judged, read_counts
from sonde.session.records import Exit, MemoryKills

_INFO = struct.Struct("=QQ11Ii")  # struct pidfd_info: the mask comes first, the status last
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_HAS_STATUS = 1 << 3
_GIVEN = 3  # the descriptor of the process that started us: see kernel/spawn.c


class KillCounts:
    """The counters of the kernel's out-of-memory killer, and our processes that it kills first."""

    def __init__(self, reader: Reader, starts: int = 0) -> None:
        self._reader, self._groups = reader, Groups(reader)
        self.starts = starts  # collectors that were started since one proved itself, this included
        self.starts_before = max(0, starts - 1)
        self.ours = 1  # this process and its children
        self._killed: list[str | None] = []

    def begin(self) -> None:
        """Begin the next reading: everything is read again."""
        self._reader.begin()

    def note_killed(self, ends: Iterable[ProcessEnd]) -> None:
        """Note which processes SIGKILL has ended since the last reading."""
        self._killed = [end.find_killed() for end in ends]

    def count_killed(self, folder: str | None) -> int:
        """Return how many of them were in a cgroup: who has killed them is not known one by one."""
        return self._killed.count(folder)

    def find_folder(self, pid: int) -> str | None:
        """Return the folder of the cgroup that counts what is killed of a process's; None if it is
        gone, or if nothing counts."""
        try:
            folder = self._groups.find(pid).name("memory", "") or self._groups.find_unified(pid)
        except OSError:
            return None
        # A cgroup without a counter of its own is counted in the one above it.
        while folder and not os.path.exists(f"{folder}/memory.events"):
            if os.path.exists(f"{folder}/memory.oom_control"):
                break
            folder = os.path.dirname(folder) if os.path.exists(f"{folder}/cgroup.procs") else None
        return folder and folder.rstrip("/")

    def read(self, folder: str | None) -> Counts | None:
        """Return the counts of a cgroup; those of the machine if it has none."""
        found = None if folder is None else read_counts(folder, self._read)
        return found or self._read_machine()

    def _read_machine(self) -> Counts | None:
        try:
            kills = read_numbers(self._read(f"{self._reader.proc}/vmstat")).get(b"oom_kill")
        except OSError:
            return None
        return None if kills is None else (kills, 0, 0)

    def _read(self, path: str) -> bytes:
        return self._reader.read(path)[1]


class ProcessEnd:
    """The process of a session, held by a descriptor that is never that of another process.

    `is_starter`: it is the process that started this one."""

    def __init__(self, session: Session, counts: KillCounts, is_starter: bool = False) -> None:
        self._session, self._counts = session, counts
        self.folder = session.folder
        self._held = _open_process(session) or (_open_given() if is_starter else None)
        self._exception: str | None = None
        self._call: tuple[str, int] | tuple[None, None] = None, None  # of sys.exit
        self._cgroup: str | None = None
        self._kills: Counts | None = None
        self._kept: dict[str, object] = {}
        self.refresh()

    def refresh(self) -> None:
        """Note how many processes were killed for memory before this one."""
        if self._held is not None and not self._is_gone():
            self._cgroup = self._counts.find_folder(self._session.pid) or self._cgroup
            self._kills = self._counts.read(self._cgroup)
            with suppress(OSError):  # the disk is full, or the process has just ended
                self._keep()

    def _keep(self) -> None:
        """Leave it in the session: we are killed first where memory runs out."""
        if self._cgroup is None or self._kills is None:
            return
        kills, wholes, limits = self._kills
        kept = MemoryKills(
            folder=self._cgroup,
            number=os.stat(self._cgroup).st_ino,
            kills=kills,
            wholes=wholes,
            limits=limits,
            ours=self._counts.ours if self._counts.find_folder(os.getpid()) == self._cgroup else 0,
            starts=self._counts.starts,
        )
        if kept.dump() != self._kept:
            kept.write(self._session.path(MEMORY_KILLS))
            self._kept = kept.dump()

    def find_killed(self) -> str | None:
        """Return the cgroup of the process if it was killed, whether for memory or not."""
        is_gone = self._held is not None and self._is_gone()
        return self._cgroup if is_gone and self._was_killed(self._read_status()) else None

    def _was_killed(self, status: int | None) -> bool:
        if status is not None:
            return status & 0x7F == signal.SIGKILL
        told = self._session.read_exit()
        return (told is None or told.status is None) and self._session.find_state() == "killed"

    def write(self) -> bool:
        """Write down what is known of the end; return whether there is no more to come."""
        if self._became_another():
            return True
        is_gone = self._held is None or self._is_gone()
        status = self._read_status() if is_gone else None
        self._exception = self._exception or find_exception(self._session)
        if self._call[0] is None:  # once the session is sealed, nobody finds its row here
            self._call = find_exit_call(self._session)
        call, call_code = self._call
        known = Exit(status=status, exception=self._exception, call=call, call_code=call_code)
        if is_gone and self._was_killed(status) and (status or self._exception is None):
            fault = find_fault(self._session) if status is None else None
            known = self._find_lack(known) if fault is None else fault
        if known.dump() != Exit(status=None).dump():
            known.write(self._session.path(EXIT))
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

    def _find_lack(self, known: Exit) -> Exit:
        """Return how a process ended that was killed, with whose memory was full, if any was."""
        lack, found = find_logged_lack(self._session), None
        if lack is not None:
            found = Exit(status=int(signal.SIGKILL), out_of_memory=lack) if lack else None
        elif self._kills is not None:
            found = self._compare(self._kills, known.status)
        else:  # it was gone before we could look
            end_wall_ns, starts = find_end_wall_ns(self._session), self._counts.starts_before
            found = find_kept_kill(self._session, end_wall_ns, starts)
        note_judged(self._session)  # from now on the counters tell of others
        if found is None or known.status is None:
            return found or known
        return found.replace(status=known.status)

    def _compare(self, before: Counts, status: int | None) -> Exit | None:
        """Return what the counters say that we have read while the process lived."""
        self._counts.begin()
        now = self._counts.read(self._cgroup)
        if now is None or now[0] <= before[0]:
            return None
        certainty = "likely" if status is None else "sure"
        if now[0] - before[0] < self._counts.count_killed(self._cgroup) and now[1] == before[1]:
            certainty = "possible"
        return Exit(
            status=None if certainty == "possible" else int(signal.SIGKILL),
            out_of_memory="cgroup" if now[2] > before[2] else "machine",
            certainty=certainty,
        )


def _open_process(session: Session) -> Descriptor | None:
    """Return a descriptor of the session's process; None if it is gone, or cannot be seen here."""
    if not session.shares_pids():
        return None
    try:
        held = Descriptor(os.pidfd_open(session.pid))
    except (OSError, AttributeError):
        return None
    # The pid may be another's by now. Once it is held, what /proc says is about the same process.
    fields = _read_stat(session.pid)
    if len(fields) > 19 and int(fields[19]) == session.meta.start_ticks:
        return held
    held.close()
    return None


def _open_given() -> Descriptor | None:
    """Return the descriptor that the process that started us has left, if that process is gone."""
    try:
        held = Descriptor(os.dup(_GIVEN))
    except OSError:
        return None
    return None if _ask_status(held) is None else held


def _ask_status(held: Descriptor) -> int | None:
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
