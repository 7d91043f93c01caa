"""Read the stacks that a recording has of a process that runs or has ended."""

from __future__ import annotations

from sonde.errors import Error
from sonde.session import Session, stack_table
from sonde.session.last_stacks import pick_raised, read_last_stacks, read_raised
from sonde.session.lock_waits import add_locks, read_lock_waits, take_newest
from sonde.session.native_stacks import add_native_frames
from sonde.session.stack_table import StackFrame, ThreadStack

_LAST_LOCKS = """
SELECT * FROM python.lock_wait AS w WHERE NOT EXISTS (
  FROM python.stack_sample WHERE thread = w.thread AND t_ns > w.t_ns AND NOT idle) ORDER BY t_ns
"""


def read_stacks(session: Session) -> list[ThreadStack]:
    """Return the newest stacks of a process, or the last ones of one that has ended."""
    try:
        found = stack_table.read_newest(session)
        if not session.is_alive():
            found = add_native_frames(found, session)
        add_locks(found, read_lock_waits(session))
        return found
    except FileNotFoundError:
        if session.read_sealed() is None:
            raise Error(
                f"stacks of process {session.pid} are not recorded; "
                f"`sonde config {session.pid} source.stack=on` starts it"
            ) from None
    last = read_last_stacks(session)
    return _read_archived(session) if last is None else last[0]


def _read_archived(session: Session) -> list[ThreadStack]:
    """Return the last stacks of a process that an earlier sonde sealed: they are in its tables."""
    from sonde.store.recording import Recording

    found: dict[int, ThreadStack] = {}
    recording = Recording([session])
    rows = recording.query("SELECT * FROM python.backtrace ORDER BY thread, depth").to_pylist()
    for row in rows:
        one = found.setdefault(row["thread"], ThreadStack(row["thread"], row["name"], row["t_ns"]))
        one.gil, one.idle, one.interpreter = row["gil"], row["idle"], row["interpreter"]
        one.frames.append(StackFrame(row["func"], row["file"], row["lineno"], 0))
    for thread, wait in take_newest(recording.query(_LAST_LOCKS).to_pylist()).items():
        if thread in found:
            found[thread].lock, found[thread].wait = wait, "lock"
    return list(found.values())


def read_raised_of(session: Session) -> list[StackFrame]:
    """Return the frames of the exception that ended the main thread, the innermost first."""
    if session.read_sealed() is None:
        return read_raised(session)
    last = read_last_stacks(session)
    if last is not None:
        return last[1]
    from sonde.store.recording import Recording  # only here: an earlier sonde sealed it

    recording = Recording([session])
    return pick_raised(
        session.pid,
        recording.query("SELECT * FROM python.exception").to_pylist(),
        recording.query("SELECT * FROM python.exception_frame").to_pylist(),
    )
