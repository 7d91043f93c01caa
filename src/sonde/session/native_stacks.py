"""native_stacks.json: the native stacks of all threads at a fault, and where Python's belong."""

from __future__ import annotations

from sonde.errors import Damaged
from sonde.session.folder import Session
from sonde.session.records import Record
from sonde.session.stack_table import StackFrame, ThreadStack, order_threads

NAME = "native_stacks.json"
_LAST_NS = 10**9  # after a fault, nobody is sampled for longer: the program had a way to go on


class ThreadAtFault(Record):
    """One thread. Each frame, the innermost first, is a native one (its function, its library, 0)
    or stands for so many of Python's."""

    thread: int
    waits: bool
    depth: int
    frames: list[tuple[str, str, int]]


class StacksAtFault(Record):
    """All threads that were there at the fault, and what is to be said of them."""

    t_ns: int
    notes: list[str]
    threads: list[ThreadAtFault]


def add_native_frames(threads: list[ThreadStack], session: Session) -> list[ThreadStack]:
    """Return the last stacks of a program with their native frames, if a fault has ended it; with
    the threads that ran no Python, if there were any."""
    found = _read(session)
    if found is None or any(one.t_ns > found.t_ns + _LAST_NS for one in threads):
        return threads
    known = {one.thread: one for one in found.threads}
    for one in threads:
        native = known.pop(one.thread, None)
        # What was seen before the fault only was not seen again: it may have been elsewhere.
        if native is not None and one.t_ns >= found.t_ns:
            one.frames = _merge(native, one.frames)
    for native in known.values():
        if native.depth == 0:
            one = ThreadStack(native.thread, None, found.t_ns)
            one.idle, one.frames = native.waits, _merge(native, [])
            threads.append(one)
    return order_threads(threads, session.pid)


def read_notes(session: Session) -> list[str]:
    """Return what is to be said of the native stacks at a fault."""
    found = _read(session)
    return [] if found is None else found.notes


def _read(session: Session) -> StacksAtFault | None:
    try:
        return StacksAtFault.read(session.path(NAME))
    except (FileNotFoundError, Damaged):
        return None


def _merge(native: ThreadAtFault, frames: list[StackFrame]) -> list[StackFrame]:
    """Put Python's frames in their places; leave them alone if they are others by now."""
    left = [frame for frame in frames if not frame.is_native]
    if len(left) < native.depth or (left and not native.depth):
        return frames
    found = list[StackFrame]()
    for func, file, python in native.frames:
        if python:
            found += left[:python]
            del left[:python]
        else:
            found.append(StackFrame(func, file, 0, 0, is_native=True))
    return found + left
