"""The few lines that sonde writes to the program's stderr, and to nothing else."""

from __future__ import annotations

import os
import sys

from sonde import _core, environ


def print_notice(line: str) -> None:
    """Write one line to stderr, for a user who asked for something and does not get it.

    Nothing is written if descriptor 2 is no longer what it was, or if that would take waiting."""
    data = f"sonde: {line}\n".encode("utf-8", "backslashreplace")
    # With signals held back: writing to a terminal from the background may stop the program.
    _core.undisturbed(lambda: _write(data))


def print_complaints(complaints: list[str], silenced: object) -> None:
    """Say what is wrong in the environment, unless it is `silenced`: an earlier recording has said
    so, or somebody attached, whose environment it is not. Only the first process of a job says it:
    all that it starts have the same environment."""
    if silenced is None and not environ.is_child():
        for line in complaints:
            print_notice(line)


def _write(data: bytes) -> None:
    done = 1
    while done and data and _is_stderr():
        done = _core.write_ready(2, data)
        data = data[done:]


def _is_stderr() -> bool:
    """Tell whether descriptor 2 is still the program's stderr: a program may close it, and the next
    file that it opens gets the number."""
    python = getattr(sys, "__stderr__", None)
    # Files that Python opens are closed in children, which a stderr is not.
    is_kept = python is not None and not python.closed and os.get_inheritable(2)
    return is_kept and _identify(2) == _AT_START


def _identify(descriptor: int) -> tuple[int, int, int] | None:
    """Return what a descriptor is: device, inode and kind; None if it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mode >> 12


# Taken when the job imports us, which is before it can reuse the number if `sonde run` starts it.
_AT_START = _identify(2)
