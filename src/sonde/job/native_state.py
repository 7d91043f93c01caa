"""The native thread: how it is started, and what it noticed, in words for `sonde.source`."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the enums of `signal` are slow to create
import errno
import os

from sonde import _core, launch
from sonde.job.subinterpreter import Nothing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sonde.session.writer import SessionWriter
    from sonde.settings import Value

Note = tuple[str, str, str | None]

# The states of kernel/snapshot_signal.h.
_SIGNAL_STATES = {
    0: ("on", None),
    1: ("on", "the program has installed a handler of its own, which is called after ours"),
    2: (
        "unavailable",
        "the program has installed a handler of its own; {name} asks for snapshots only if that "
        "handler passes it on",
    ),
    3: ("unavailable", "the program ignores {name}, so it asks for no snapshots"),
    4: ("unavailable", "the program has reset {name}, which ends it now"),
}


def start_thread(
    writing: SessionWriter, obey: Callable[[int | None, int | None], object]
) -> _core.NativeThread:
    """Start the native thread of a session; it calls `obey` at safe points of the main thread."""
    thread = _core.NativeThread(writing.page, obey)
    collector, snapshot, env = launch.make_commands(writing.root, writing.folder, writing.values)
    if collector:
        lock = os.fsencode(launch.collector_lock(writing.root))
        kept = lock if writing.values["collector"] else None
        wanted = snapshot if writing.values["snapshot.signal"] else []
        thread.keep(kept, collector, wanted, env)
    thread.start()
    return thread


def catch_signal(writing: SessionWriter) -> None:
    """Catch the signal that asks for snapshots, if there is one."""
    number = getattr(_signal, f"SIG{writing.values['snapshot.signal']}", None)
    if number is not None:
        _core.signal_catch(number, writing.page)


def find_stand_in() -> Nothing | None:
    """Return what does nothing if the program has installed a filter of system calls since its
    recording began: it may end the program at the next import. Otherwise return None."""
    return Nothing() if _core.has_later_filter() else None


def find_danger(values: Mapping[str, Value]) -> str | None:
    """Return why recording would end the program: a filter of system calls; None if it would not.
    To try one that was there before takes another process, so it is not tried where we are to start
    none. What one forbids that came later is not tried: it may forbid to start that process."""
    if _core.filter_watch():
        return "the program has installed a seccomp filter, which may end it at any call of ours"
    call = _core.find_deadly_call() if values["collector"] else None
    return call and f"a seccomp filter would end the program at our first call of {call}()"


def describe(start: int | None, signal: int | None, writing: SessionWriter) -> Iterator[Note]:
    """Yield what to record about the news of the native thread."""
    if start is not None:
        yield _describe_start(start)
    if signal is not None:
        yield _describe_signal(signal, str(writing.values["snapshot.signal"]))


def _describe_start(status: int) -> Note:
    """Return what to record about starting the collector and other processes: 0 or -errno."""
    if status == 0:
        return "collector", "on", None
    if status == -errno.E2BIG:
        why = (
            "the job is process 1 or a subreaper, and had more than 1 GiB of memory when recording "
            "began, too much to start a collector from it; start recording earlier, or start "
            "the job below an init such as tini"
        )
    else:
        why = f"processes cannot be started: {os.strerror(-status)}"
    return "collector", "unavailable", why


def _describe_signal(state: int, name: str) -> Note:
    """Return what to record about the signal that asks for snapshots."""
    word, why = _SIGNAL_STATES[state]
    return "snapshot.signal", word, why and why.format(name=f"SIG{name}")
