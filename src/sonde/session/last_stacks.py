"""last_stacks.json: where each thread of a sealed session was last, readable without Arrow."""

from __future__ import annotations

from sonde.errors import Damaged
from sonde.session import stack_table
from sonde.session.folder import Session
from sonde.session.held_lock import HeldLock
from sonde.session.lock_waits import add_locks, read_lock_waits
from sonde.session.native_stacks import add_native_frames
from sonde.session.records import Record
from sonde.session.stack_table import StackFrame, ThreadStack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

NAME = "last_stacks.json"


class LastLock(Record):
    """The lock that a thread waited for, as in a row of python.lock_wait."""

    thread: int
    t_ns: int
    since_ns: int
    lock: int
    kind: str | None
    holder: int | None
    taken_func: str | None
    taken_file: str | None
    taken_lineno: int | None


class LastThread(Record):
    """The last stack of one thread; of each frame the function, its file and the line."""

    thread: int
    name: str | None
    t_ns: int
    since_ns: int | None
    cpu_ns: int
    interpreter: int
    gil: bool
    idle: bool
    wait: str | None
    lock: LastLock | None
    frames: list[tuple[str, str, int]]
    has_run: bool = False


class LastStacks(Record):
    """All threads that had not ended, and the stack of the exception that ended the main one."""

    threads: list[LastThread]
    raised: list[tuple[str, str, int]]


def write_last_stacks(session: Session) -> None:
    """Write the file, while the rings are still there; nothing if stacks were not recorded."""
    try:
        threads = add_native_frames(stack_table.read_newest(session), session)
        add_locks(threads, read_lock_waits(session))
        raised = read_raised(session)
    except (FileNotFoundError, Damaged):
        return  # what is damaged is lost; the rest of the session is not
    LastStacks(
        threads=[_pack(one) for one in threads],
        raised=[(frame.func, frame.file, frame.line) for frame in raised],
    ).write(session.path(NAME))


def read_last_stacks(session: Session) -> tuple[list[ThreadStack], list[StackFrame]] | None:
    """Return the last stacks and that of the exception; None if they are in the tables only,
    because an earlier sonde sealed the session or the file is damaged."""
    try:
        found = LastStacks.read(session.path(NAME))
    except (FileNotFoundError, Damaged):
        return None
    return [_unpack(one) for one in found.threads], _make_frames(found.raised)


def read_raised(session: Session) -> list[StackFrame]:
    """Return the frames of the exception that ended the main thread, the innermost first, from
    the rings."""
    try:
        raised = list(stack_table.read_rows(session, "python.exception"))
        frames = list(stack_table.read_rows(session, "python.exception_frame"))
    except FileNotFoundError:  # exceptions were not recorded
        return []
    return pick_raised(session.pid, raised, frames)


def pick_raised(
    pid: int, raised: Iterable[Mapping[str, Any]], frames: Iterable[Mapping[str, Any]]
) -> list[StackFrame]:
    """Return the frames of the last exception of the main thread, of rows of the two tables."""
    last = max((row["number"] for row in raised if row["thread"] == pid), default=None)
    return [
        StackFrame(row["func"], row["file"], row["lineno"], 0)
        for row in sorted(frames, key=lambda row: row["depth"])
        if row["number"] == last
    ]


def _pack(one: ThreadStack) -> LastThread:
    return LastThread(
        thread=one.thread, name=one.name, t_ns=one.t_ns, since_ns=one.since_ns, cpu_ns=one.cpu_ns,
        interpreter=one.interpreter, has_run=one.has_run, gil=one.gil, idle=one.idle, wait=one.wait,
        lock=None if one.lock is None else _pack_lock(one.lock),
        frames=[(frame.func, frame.file, frame.line) for frame in one.frames],
    )  # fmt: skip


def _pack_lock(lock: HeldLock) -> LastLock:
    func, file, line = lock.taken or (None, None, None)
    return LastLock(
        thread=lock.thread, t_ns=lock.t_ns, since_ns=lock.since_ns, lock=lock.lock, kind=lock.kind,
        holder=lock.holder, taken_func=func, taken_file=file, taken_lineno=line,
    )  # fmt: skip


def _unpack(known: LastThread) -> ThreadStack:
    one = ThreadStack(known.thread, known.name, known.t_ns)
    one.since_ns, one.cpu_ns, one.interpreter = known.since_ns, known.cpu_ns, known.interpreter
    one.gil, one.idle, one.wait = known.gil, known.idle, known.wait
    one.has_run = known.has_run
    one.lock = None if known.lock is None else HeldLock(vars(known.lock))
    one.frames = _make_frames(known.frames)
    return one


def _make_frames(frames: list[tuple[str, str, int]]) -> list[StackFrame]:
    return [StackFrame(func, file, line, 0) for func, file, line in frames]
