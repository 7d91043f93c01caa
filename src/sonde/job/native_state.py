"""What the native thread noticed, in words for `sonde.source`."""

from __future__ import annotations

import errno
import os

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


def describe_start(status: int) -> Note:
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


def describe_signal(state: int, name: str) -> Note:
    """Return what to record about the signal that asks for snapshots."""
    word, why = _SIGNAL_STATES[state]
    return "snapshot.signal", word, why and why.format(name=f"SIG{name}")
